//! Topologies and compiling ahead of time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::*;
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
    assert!(error.is_invalid_argument());
    says(&error, &["the topology's name is empty; give one such as v5e:2x4"]);
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
        // Older plugins have no compiler for it.
        Err(error) => assert!(error.is_not_found() && client.plugin().api_version().minor < 115, "{error:?}"),
    }
    let error = client.plugin().compile(&topology, &increment(""), &CompileOptions::new().replicas(2)).unwrap_err();
    says(&error, &["2 replicas times 1 partitions, but the topology has 1 devices"]);
    says(&client.plugin().compile(&topology, "", &CompileOptions::new()).unwrap_err(), &["the program is empty"]);
}

#[test]
fn libtpu_compiles_without_a_tpu() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    assert_eq!((topology.platform_name(), topology.devices().len()), ("tpu", 8));
    assert_eq!(topology.devices()[0].coordinates(), Some(vec![0, 0, 0]));
    topology.fingerprint().unwrap();
    assert!(!topology.serialize().unwrap().is_empty());

    let program = plugin.compile(&topology, &all_reduce(8), &CompileOptions::new().replicas(8)).unwrap();
    assert_eq!(program.signature().to_string(), "(f32[4]) -> (f32[4])");
    assert!(program.cost_analysis().unwrap().bytes_accessed().is_some());
    assert!(program.memory_analysis().unwrap().peak_bytes > 0);
    assert!(!program.serialize().unwrap().is_empty());
    let donating = plugin.compile(&topology, &increment("{tf.aliasing_output = 0 : i32}"), &CompileOptions::new());
    assert_eq!(donating.unwrap().signature().to_string(), "(f32[4] donated) -> (f32[4])");
}

#[test]
fn what_would_end_libtpu_is_refused() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:2x4").unwrap();
    let check = |mlir: &str, options: CompileOptions, part: &str| {
        let error = plugin.compile(&topology, mlir, &options).unwrap_err();
        assert!(error.is_invalid_argument() && !error.is_from_plugin());
        says(&error, &[part]);
    };
    check(&increment("").replace("4xf32", "?xf32"), CompileOptions::new(), "dimension of unknown length");
    check(&all_reduce(16), CompileOptions::new().replicas(8), "replica_groups name device 15");
    check(&increment(""), CompileOptions::new().device_assignment([vec![99]]), "names device 99");
    says(&plugin.topology("v9:2x2").unwrap_err(), &["v9:2x2"]);
    assert!(plugin.create_client(&[]).is_err(), "there is no TPU here");
    let cpu = common::client(1).topology().unwrap();
    let error = plugin.compile(&cpu, &increment(""), &CompileOptions::new()).unwrap_err();
    says(&error, &["the topology belongs to another plugin"]);
}
