//! Topologies and ahead-of-time compilation.

use crate::common::*;
use fulmen_pjrt::CompileOptions;

#[test]
fn a_client_describes_its_devices() {
    let client = client(2);
    let topology = client.topology().unwrap();
    drop(client);
    assert_eq!((topology.platform_name(), topology.devices().len()), ("cpu", 2));
    assert_eq!(topology.devices()[1].id(), 1);
    assert!(!topology.platform_version().is_empty());
    for outcome in [topology.fingerprint().map(|_| ()), topology.serialize().map(|_| ())] {
        assert!(!outcome.as_ref().is_err_and(|error| !error.is_unsupported()), "{outcome:?}");
    }
}

#[test]
fn a_topology_without_a_name_is_refused() {
    let error = plugin().topology(" ").unwrap_err();
    assert!(error.is_usage());
    says(&error, &["the topology's name is empty; pass one such as v5e:2x4"]);
    assert!(plugin().topology("v5e:2x4").unwrap_err().is_from_plugin());
}

#[test]
fn the_cpu_plugin_compiles_for_its_own_topology() {
    let client = client(1);
    let topology = client.topology().unwrap();
    match client.plugin().compile(&topology, &increment(""), &CompileOptions::new()) {
        Ok(program) => {
            assert_eq!(program.signature().to_string(), "(f32[4]) -> (f32[4])");
            assert_eq!(program.memory_analysis().unwrap().argument_bytes, 16);
        }
        // Older plugins have no compiler for topologies.
        Err(error) => {
            assert!(error.is_not_found() && client.plugin().api_version().minor < 115, "{error:?}")
        }
    }
    let error = client
        .plugin()
        .compile(&topology, &increment(""), &CompileOptions::new().replicas(2))
        .unwrap_err();
    says(&error, &["2 replicas times 1 partition, but the topology has 1 device"]);
    says(
        &client.plugin().compile(&topology, "", &CompileOptions::new()).unwrap_err(),
        &["the program is empty"],
    );
}

#[test]
fn libtpu_compiles_without_a_tpu() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    assert_eq!((topology.platform_name(), topology.devices().len()), ("tpu", 8));
    assert_eq!(topology.devices()[0].coordinates(), Some(vec![0, 0, 0]));
    topology.fingerprint().unwrap();
    assert!(!topology.serialize().unwrap().is_empty());

    let program =
        plugin.compile(&topology, &all_reduce(8), &CompileOptions::new().replicas(8)).unwrap();
    assert_eq!(program.signature().to_string(), "(f32[4]) -> (f32[4])");
    assert!(program.cost_analysis().unwrap().bytes_accessed().is_some());
    assert!(program.memory_analysis().unwrap().peak_bytes > 0);
    assert!(!program.serialize().unwrap().is_empty());
    let donating = plugin.compile(
        &topology,
        &increment("{tf.aliasing_output = 0 : i32}"),
        &CompileOptions::new(),
    );
    assert_eq!(donating.unwrap().signature().to_string(), "(f32[4] donated) -> (f32[4])");
}

#[test]
fn libtpu_describes_devices_that_are_not_present() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    let last = &topology.devices()[7];
    assert_eq!((last.id(), last.process_index(), last.kind()), (7, 1, "TPU v5 lite"));
    assert_eq!(
        (last.coordinates(), last.core_on_chip(), last.num_cores()),
        (Some(vec![1, 3, 0]), Some(0), Some(1))
    );
    assert_eq!(last.memory_bytes(), Some(16_909_332_480));
    // In this generation, each core is a device.
    let older = plugin.topology("v3:2x2").unwrap();
    let cores =
        older.devices().iter().map(|device| device.core_on_chip().unwrap()).collect::<Vec<_>>();
    assert_eq!(cores, [0, 1, 0, 1, 0, 1, 0, 1]);
    let cpu = client(1);
    let device = &cpu.devices()[0];
    assert_eq!(
        (device.coordinates(), device.core_on_chip(), device.memory_bytes()),
        (None, None, None)
    );
}

/// The step of a data-parallel program: each device has a part of the batch, and the weights'
/// gradient is summed.
#[test]
fn libtpu_splits_a_program_by_its_shardings() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    let mlir = "module @step {
        sdy.mesh @mesh = <[\"data\"=8]>
        func.func @main(
            %x: tensor<256x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>},
            %w: tensor<512x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, tf.aliasing_output = 1 : i32})
            -> (tensor<256x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>},
                tensor<512x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
             : (tensor<256x512xf32>, tensor<512x128xf32>) -> tensor<256x128xf32>
          %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
             : (tensor<256x512xf32>, tensor<256x128xf32>) -> tensor<512x128xf32>
          %v = stablehlo.subtract %w, %g : tensor<512x128xf32>
          return %y, %v : tensor<256x128xf32>, tensor<512x128xf32>
        }
      }";
    let program = plugin.compile(&topology, mlir, &CompileOptions::new().partitions(8)).unwrap();
    assert_eq!((program.num_replicas(), program.num_partitions()), (1, 8));
    // The shapes are those of one device's part.
    let signature = program.signature().to_string();
    assert_eq!(signature, "(f32[32,512], f32[512,128] donated) -> (f32[32,128], f32[512,128])");
    let memory = program.memory_analysis().unwrap();
    assert!(memory.argument_bytes >= (32 * 512 + 512 * 128) * 4, "{memory:?}");
    assert!(memory.argument_bytes < 256 * 512 * 4, "no device has the whole batch: {memory:?}");
    // Two products of 2 * 32 * 512 * 128 on each device.
    let flops = program.cost_analysis().unwrap().flops().unwrap();
    assert!((8.0e6..12.0e6).contains(&flops), "{flops}");
    // Also on a part of the topology.
    let half = mlir.replace("\"data\"=8", "\"data\"=4");
    let half = plugin.compile(&topology, &half, &CompileOptions::new().partitions(4)).unwrap();
    assert!(half.signature().to_string().starts_with("(f32[64,512], "));
    // A mesh whose size differs from the options is an error.
    assert!(
        plugin
            .compile(&topology, mlir, &CompileOptions::new().partitions(4))
            .unwrap_err()
            .is_from_plugin()
    );
}

#[test]
fn programs_that_would_end_libtpu_are_refused() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    let check = |mlir: &str, options: CompileOptions, part: &str| {
        let error = plugin.compile(&topology, mlir, &options).unwrap_err();
        assert!(error.is_usage() && !error.is_from_plugin());
        says(&error, &[part]);
    };
    check(
        &increment("").replace("4xf32", "?xf32"),
        CompileOptions::new(),
        "dimension of unknown length",
    );
    check(&increment(""), CompileOptions::new().device_assignment([vec![99]]), "names device 99");
    says(&plugin.topology("v9:2x2").unwrap_err(), &["v9:2x2"]);
    assert!(plugin.create_client(&[]).is_err(), "there is no TPU here");
    let cpu = crate::common::client(1).topology().unwrap();
    let error = plugin.compile(&cpu, &increment(""), &CompileOptions::new()).unwrap_err();
    says(&error, &["the topology belongs to a different plugin"]);
}
