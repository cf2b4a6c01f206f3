//! Compiling: rejected programs and options, and the compiler's reports.

use crate::common::*;
use fulmen_pjrt::{Client, CompileOptions, Error, LoadedExecutable};

fn refused(client: &Client, mlir: &str, options: &CompileOptions, parts: &[&str]) -> Error {
    let error = client.compile(mlir, options).unwrap_err();
    says(&error, parts);
    error
}

/// Tests are debug builds, which check more than release builds.
#[test]
fn programs_that_would_end_a_process_are_refused() {
    let client = client(2);
    let check = |mlir: &str, parts: &[&str]| {
        let error = refused(&client, mlir, &CompileOptions::new(), parts);
        assert!(error.is_usage() && !error.is_from_plugin(), "{error:?}");
    };
    check("", &["the program is empty"]);
    check(
        &String::from_utf8_lossy(b"ML\xefR\x0dMLIR"),
        &["MLIR bytecode", "pass the program as text"],
    );
    check(&format!("{}\0", increment("")), &["NUL byte"]);
    check(
        &increment("").replace("4xf32", "?xf32"),
        &["tensor<?xf32> has a dimension of unknown length"],
    );
    let infeed = "func.func @main() -> tensor<4xf32> {
        %token = stablehlo.create_token : !stablehlo.token
        %x:2 = \"stablehlo.infeed\"(%token) : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
        return %x#0 : tensor<4xf32>
      }";
    check(infeed, &["stablehlo.infeed would wait forever"]);
    check(
        &increment(&format!("{{a = {}{}}}", "[".repeat(9999), "]".repeat(9999))),
        &["brackets are nested"],
    );
}

#[test]
fn options_that_would_end_a_process_are_refused() {
    let client = client(2);
    let new = CompileOptions::new;
    let program = increment("");
    for (options, part) in [
        (new().replicas(0), "0 replicas and 1 partition; each must be at least 1"),
        (new().partitions(0), "each must be at least 1"),
        (new().replicas(3), "3 replicas times 1 partition, but the client has 2 devices"),
        (new().partitions(2).spmd(false), "without SPMD"),
        (new().device_assignment([vec![5]]), "names device 5; the client's devices are [0, 1]"),
    ] {
        assert!(refused(&client, &program, &options, &[part]).is_usage());
    }
}

#[test]
fn flags_are_checked_by_the_plugin() {
    let client = client(1);
    let program = increment("");
    let new = CompileOptions::new;
    client.compile(&program, &new().override_flag("--xla_cpu_prefer_vector_width", 512)).unwrap();
    let error = refused(
        &client,
        &program,
        &new().override_flag("xla_no_such_flag", true),
        &["xla_no_such_flag"],
    );
    assert!(error.is_from_plugin() && error.is_usage(), "{error:?}");
    refused(
        &client,
        &program,
        &new().override_flag("xla_cpu_prefer_vector_width", "wide"),
        &["wide"],
    );
}

#[test]
fn a_wrong_program_is_an_error_with_its_position() {
    let client = client(1);
    let error = refused(
        &client,
        "func.func @main() {\n  oops\n}",
        &CompileOptions::new(),
        &["compiling for cpu", "2:"],
    );
    assert!(error.is_from_plugin());
    refused(&client, "func.func @other() { return }", &CompileOptions::new(), &["main"]);
}

fn signature(program: &LoadedExecutable) -> String {
    program.signature().to_string()
}

#[test]
fn the_signature_comes_from_the_compiler() {
    let client = client(1);
    let mlir = "func.func @main(%a: tensor<2x3xbf16>, %unused: tensor<i1>, %c: tensor<4xui32>)
          -> (tensor<4xui32>, tensor<2x3xbf16>, tensor<0xf64>) {
        %e = stablehlo.constant dense<> : tensor<0xf64>
        return %c, %a, %e : tensor<4xui32>, tensor<2x3xbf16>, tensor<0xf64>
      }";
    let program = compile(&client, mlir);
    assert_eq!(signature(&program), "(bf16[2,3], pred[], u32[4]) -> (u32[4], bf16[2,3], f64[0])");
    assert_eq!(program.signature().donated, [false; 3]);
    let nothing = compile(&client, "func.func @main() { return }");
    assert_eq!(signature(&nothing), "() -> ()");
    assert!(run(&nothing, Vec::new()).outputs[0].is_empty());
}

#[test]
fn the_signature_marks_donated_arguments() {
    let client = client(1);
    for attribute in ["{tf.aliasing_output = 0 : i32}", "{jax.buffer_donor = true}"] {
        let program = compile(&client, &increment(attribute));
        assert_eq!(signature(&program), "(f32[4] donated) -> (f32[4])", "{attribute}");
    }
    assert_eq!(signature(&compile(&client, &increment(""))), "(f32[4]) -> (f32[4])");
}

#[test]
fn the_signature_of_a_split_program_is_that_of_a_part() {
    let client = client(4);
    let mlir = "module {
        sdy.mesh @mesh = <[\"data\"=4]>
        func.func @main(%x: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>},
                        %w: tensor<3x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
            -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>}) {
          %y = stablehlo.dot %x, %w : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32>
          return %y : tensor<8x2xf32>
        }
      }";
    let program = client.compile(mlir, &CompileOptions::new().partitions(4)).unwrap();
    assert_eq!(signature(&program), "(f32[2,3], f32[3,2]) -> (f32[2,2])");
    assert_eq!((program.num_replicas(), program.num_partitions()), (1, 4));
    let error =
        client.compile(mlir, &CompileOptions::new().partitions(4).shardy(false)).unwrap_err();
    assert!(error.is_from_plugin(), "{error:?}");
}

#[test]
fn a_program_runs_where_it_was_assigned() {
    let client = client(3);
    let program = client
        .compile(&increment(""), &CompileOptions::new().device_assignment([vec![2]]))
        .unwrap();
    assert_eq!(program.devices(), &client.devices()[2..]);
    let execution = run(&program, vec![(&put(&client, &[1.0; 4], 2)).into()]);
    assert_eq!(execution.outputs[0][0].device(), &client.devices()[2]);
    assert_eq!(get(&execution.outputs[0][0]), [2.0; 4]);
}

#[test]
fn a_program_can_be_examined() {
    let client = client(1);
    let program = compile(
        &client,
        &format!("module @counter {{ {} }}", increment("{tf.aliasing_output = 0 : i32}")),
    );
    assert!(program.name().contains("counter"), "{}", program.name());
    assert_eq!(program.fingerprint().unwrap(), program.fingerprint().unwrap());
    let memory = program.memory_analysis().unwrap();
    assert_eq!((memory.argument_bytes, memory.output_bytes, memory.alias_bytes), (16, 16, 16));
    assert!(!program.optimized_hlo().unwrap().is_empty());
    match program.cost_analysis() {
        Ok(cost) => assert_eq!(cost.flops(), Some(4.0)),
        Err(error) => assert!(error.is_unsupported(), "{error:?}"),
    }
}
