//! Stored executables: loaded without compiling, and rejected if they are damaged or have another
//! origin.

use crate::common::*;
use fulmen_pjrt::CompileOptions;

#[test]
fn a_stored_program_runs_again() {
    let one = client(1);
    let stored = compile(&one, &increment("{tf.aliasing_output = 0 : i32}")).serialize().unwrap();
    // In another client, after the first has been dropped.
    drop(one);
    let client = client(1);
    let program = client.load(&stored).unwrap();
    assert_eq!(program.signature().to_string(), "(f32[4] donated) -> (f32[4])");
    let x = put(&client, &[1.0; 4], 0);
    assert_eq!(get(&run(&program, vec![(&x).into()]).outputs[0][0]), [2.0; 4]);
    assert_eq!(get(&run(&program, vec![x.into()]).outputs[0][0]), [2.0; 4]);
    // A CPU plugin would return bytes without the code, which fail later.
    let error = program.serialize().unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains("was loaded from stored bytes"), "{error}");
}

#[test]
fn a_stored_program_over_devices_runs_again() {
    let client = client(2);
    let stored = client
        .compile(&all_reduce(2), &CompileOptions::new().replicas(2))
        .unwrap()
        .serialize()
        .unwrap();
    let program = client.load(&stored).unwrap();
    assert_eq!((program.num_replicas(), program.devices().len()), (2, 2));
    let inputs = [put(&client, &[1.0; 4], 0), put(&client, &[2.0; 4], 1)];
    let execution =
        program.execute(inputs.into_iter().map(|input| vec![input.into()]).collect()).unwrap();
    assert_eq!(get(&execution.outputs[1][0]), [3.0; 4]);

    let error = crate::common::client(1).load(&stored).unwrap_err();
    assert!(error.is_usage());
    says(&error, &["the stored executable needs 2 devices, but this client has 1"]);
}

/// The plugin itself would run most of these bytes, or crash on them.
#[test]
fn damaged_bytes_never_reach_the_plugin() {
    let client = client(1);
    let stored = compile(&client, &increment("")).serialize().unwrap();
    for i in (0..stored.len()).step_by(stored.len() / 200) {
        let mut damaged = stored.clone();
        damaged[i] ^= 1 << (i % 8);
        let error = client.load(&damaged).unwrap_err();
        assert!(error.is_corrupt() && !error.is_from_plugin(), "byte {i}: {error:?}");
        says(&error, &["compile the program again"]);
    }
    for (bytes, part) in [
        (&stored[..stored.len() - 1], "its checksum does not match"),
        (&stored[..20], "cut off before its checksum"),
        (&[][..], "these bytes are not an executable stored by fulmen (0 bytes)"),
        (b"something else altogether", "these bytes are not an executable stored by fulmen"),
    ] {
        says(&client.load(bytes).unwrap_err(), &[part]);
    }
}

/// A copy of the plugin's file with one more byte at its end, which is another file with the same
/// code.
#[test]
fn bytes_of_another_plugin_file_are_refused() {
    let stored = compile(&client(1), &increment("")).serialize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.so");
    std::fs::copy(plugin().path(), &copy).unwrap();
    let mut file = std::fs::File::options().append(true).open(&copy).unwrap();
    std::io::Write::write_all(&mut file, b"x").unwrap();
    drop(file);
    let other = fulmen_pjrt::Plugin::load(&copy).unwrap();
    let client = other.create_client(&[("cpu_device_count", 1.into())]).unwrap();
    let error = client.load(&stored).unwrap_err();
    assert!(error.is_corrupt());
    says(&error, &["was written by a plugin file other than", "copy.so"]);
}
