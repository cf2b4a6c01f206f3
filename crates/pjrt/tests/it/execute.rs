//! Executing: rejected arguments, and donation.

use crate::common::*;
use fulmen_pjrt::{Argument, ElementType};

const ALIAS: &str = "{tf.aliasing_output = 0 : i32}";

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let client = client(2);
    let program = compile(&client, &increment(""));
    let device = &client.devices()[0];
    let check = |arguments: Vec<Vec<Argument<'_>>>, parts: &[&str]| {
        let error = program.execute(arguments).unwrap_err();
        assert!(error.is_usage() && !error.is_from_plugin(), "{error:?}");
        says(&error, parts);
    };
    let x = put(&client, &[1.0; 4], 0);
    check(Vec::new(), &["runs on 1 device of this host, but arguments were given for 0"]);
    check(vec![vec![(&x).into()], vec![(&x).into()]], &["runs on 1 device", "given for 2"]);
    check(vec![Vec::new()], &["takes 1 argument, but got 0 for", "(f32[4]) -> (f32[4])"]);
    check(vec![vec![(&x).into(), (&x).into()]], &["takes 1 argument, but got 2 for"]);

    // The same number of bytes, which a plugin would accept.
    let square = client.buffer_from_host(&[0; 16], ElementType::F32, &[2, 2], device).unwrap();
    check(vec![vec![(&square).into()]], &["argument 0 of", "must be f32[4], but is f32[2,2]"]);
    let whole = client.buffer_from_host(&[0; 16], ElementType::S32, &[4], device).unwrap();
    check(vec![vec![(&whole).into()]], &["must be f32[4], but is s32[4]"]);
    let long = put(&client, &[0.0; 5], 0);
    check(vec![vec![(&long).into()]], &["must be f32[4], but is f32[5]"]);

    let elsewhere = put(&client, &[1.0; 4], 1);
    check(
        vec![vec![(&elsewhere).into()]],
        &["argument 0 of", "must be on", "but is on", "use Buffer::copy_to_device"],
    );
    let other = crate::common::client(1);
    let foreign = put(&other, &[1.0; 4], 0);
    check(vec![vec![(&foreign).into()]], &["belongs to a different client than the program"]);
    assert_eq!(get(&run(&program, vec![x.into()]).outputs[0][0]), [2.0; 4]);
}

#[test]
fn donated_memory_becomes_the_output() {
    let client = client(1);
    for attribute in [ALIAS, "{jax.buffer_donor = true}"] {
        let program = compile(&client, &increment(attribute));
        let mut x = put(&client, &[0.0; 4], 0);
        let address = x.address().unwrap();
        for step in 1..=100 {
            x = run(&program, vec![Argument::Donate(x)]).outputs.remove(0).remove(0);
            assert_eq!(x.address().unwrap(), address, "{attribute}, step {step}");
        }
        assert_eq!(get(&x), [100.0; 4]);
    }
}

#[test]
fn a_borrowed_buffer_is_never_donated() {
    let client = client(1);
    for attribute in [ALIAS, "{jax.buffer_donor = true}", ""] {
        let program = compile(&client, &increment(attribute));
        let x = put(&client, &[1.0; 4], 0);
        for _ in 0..3 {
            let y = run(&program, vec![Argument::Borrow(&x)]).outputs.remove(0).remove(0);
            assert_ne!(y.address().unwrap(), x.address().unwrap());
            assert_eq!((get(&y), get(&x)), (vec![2.0; 4], vec![1.0; 4]), "{attribute}");
        }
    }
}

#[test]
fn arguments_that_are_not_reused_can_be_donated() {
    let client = client(1);
    let program = compile(&client, &increment(""));
    assert_eq!(
        get(&run(&program, vec![put(&client, &[1.0; 4], 0).into()]).outputs[0][0]),
        [2.0; 4]
    );
}

#[test]
fn the_same_buffer_may_be_borrowed_twice() {
    let client = client(1);
    let program = compile(
        &client,
        "func.func @main(%a: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<2xf32>) -> tensor<2xf32> {
           %c = stablehlo.add %a, %b : tensor<2xf32>
           return %c : tensor<2xf32>
         }",
    );
    let x = put(&client, &[1.0, 2.0], 0);
    assert_eq!(get(&run(&program, vec![(&x).into(), (&x).into()]).outputs[0][0]), [2.0, 4.0]);
    let y = put(&client, &[5.0, 6.0], 0);
    assert_eq!(get(&run(&program, vec![y.into(), (&x).into()]).outputs[0][0]), [6.0, 8.0]);
}

#[test]
fn many_inputs_and_outputs_keep_their_order() {
    const N: usize = 300;
    let client = client(1);
    let list = |f: &dyn Fn(usize) -> String| (0..N).map(f).collect::<Vec<_>>().join(", ");
    let program = compile(
        &client,
        &format!(
            "func.func @main({}) -> ({}) {{ return {} : {} }}",
            list(&|i| format!("%x{i}: tensor<1xf32>")),
            list(&|_| "tensor<1xf32>".to_owned()),
            list(&|i| format!("%x{}", N - 1 - i)),
            list(&|_| "tensor<1xf32>".to_owned()),
        ),
    );
    let inputs = (0..N).map(|i| put(&client, &[i as f32], 0)).collect::<Vec<_>>();
    let execution = run(&program, inputs.iter().map(Argument::Borrow).collect());
    for (i, output) in execution.outputs[0].iter().enumerate() {
        assert_eq!(get(output), [(N - 1 - i) as f32]);
    }
    execution.device_complete_events[0].wait().unwrap();
}

#[test]
fn threads_may_run_one_program() {
    let client = client(1);
    let program = compile(&client, &increment(ALIAS));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            let program = &program;
            scope.spawn(move || {
                let mut x = put(client, &[thread as f32; 4], 0);
                for _ in 0..200 {
                    x = run(program, vec![x.into()]).outputs.remove(0).remove(0);
                }
                assert_eq!(get(&x), [(200 + thread) as f32; 4]);
            });
        }
    });
}

#[test]
fn an_unknown_custom_call_is_an_error() {
    let client = client(1);
    let mlir = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %y = stablehlo.custom_call @nope(%x) : (tensor<4xf32>) -> tensor<4xf32>
        return %y : tensor<4xf32>
      }";
    let error = client.compile(mlir, &Default::default()).unwrap_err();
    assert!(error.is_from_plugin());
    says(&error, &["nope"]);
}
