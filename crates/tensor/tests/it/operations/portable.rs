//! Checks that operations are portable: other compilers of StableHLO know what their programs use.

use std::path::Path;
use std::process::Command;

use fulmen_catalogue::families;
use fulmen_tensor::Function;
use fulmen_tensor::internal::portable_program;

/// The names and programs of all cases.
fn programs() -> Vec<(String, String)> {
    let mut programs = Vec::new();
    for family in families() {
        for case in family.cases() {
            let row = family.rows.iter().find(|row| row.op == case.op).unwrap();
            let types: Vec<_> = case.types().collect();
            let function = Function::trace("case", &types, |x| row.record(&x, &case.attrs));
            let (text, _) = portable_program(&function).unwrap();
            programs.push((format!("{}: {}", family.name, case.name), text));
        }
    }
    assert!(programs.len() > 500, "{}", programs.len());
    programs
}

#[test]
fn no_operation_has_a_custom_call() {
    for (name, text) in programs() {
        assert!(!text.contains("custom_call"), "{name}:\n{text}");
    }
}

#[test]
#[ignore = "needs Python: pip install jax==0.10.2; FULMEN_TEST_STABLEHLO=python cargo test -p fulmen-tensor --test it -- --ignored portable_artifact"]
fn each_operation_can_be_a_portable_artifact() {
    let python = std::env::var("FULMEN_TEST_STABLEHLO").expect("FULMEN_TEST_STABLEHLO: a Python");
    let folder = tempfile::tempdir().unwrap();
    let programs = programs();
    for (i, (name, text)) in programs.iter().enumerate() {
        let text = format!("// {name}\n{text}");
        std::fs::write(folder.path().join(format!("{i}.mlir")), text).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/portable.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.trim(), format!("{} programs", programs.len()));
}
