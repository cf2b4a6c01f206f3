//! `FULMEN_PASSES`. Each case runs in a separate process with its own environment.

use std::process::Command;

use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{DType, Function, Mesh, TensorType};

/// What the process of the test prints with this value of the variable.
fn output(test: &str, value: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FULMEN_TEST_CHILD", "1")
        .env("FULMEN_PASSES", value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs in the process that `output` starts: prints a product of transposed stacks for a TPU.
fn print_program() {
    let heads = TensorType::new(DType::F32, [2, 9, 3, 5]);
    let scores = Function::trace("scores", (heads.clone(), heads), |(queries, keys)| {
        queries.transpose(1, 2).matmul(keys.transpose(1, 2).t())
    });
    match scores.stablehlo_on(Platform::Tpu, &Mesh::new([("data", 1)]).unwrap()) {
        Ok(text) => println!("{text}"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn the_variable_turns_a_pass_off() {
    if std::env::var_os("FULMEN_TEST_CHILD").is_some() {
        return print_program();
    }
    let transposes = |value| {
        let text = output("passes::the_variable_turns_a_pass_off", value);
        assert!(text.contains("stablehlo.dot_general"), "{text}");
        text.matches("stablehlo.transpose").count()
    };
    assert_eq!(transposes(""), 0);
    assert_eq!(transposes("-axis-order"), 0);
    assert_eq!(transposes("-product-axes"), 3);
    assert_eq!(transposes("none"), 3);
}

#[test]
fn a_pass_that_does_not_exist_is_named() {
    if std::env::var_os("FULMEN_TEST_CHILD").is_some() {
        return print_program();
    }
    let text = output("passes::a_pass_that_does_not_exist_is_named", "-product-axis");
    let expected = "FULMEN_PASSES has `-product-axis`, but takes `none`, or `-NAME` for each pass to turn off, separated by \
                    commas; the passes are updates-on-devices, updates,";
    assert!(text.contains(expected), "{text}");
}
