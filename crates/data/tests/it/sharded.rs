//! Batches on eight devices: which device has which rows, what is copied, and how long memory is
//! kept.

use fulmen_data::{DataLoader, DeviceBatch, Error, HostBatch, Replicas, Result, TensorDataset};
use fulmen_tensor::{Accelerator, Devices, Mesh, Runtime, Sharding};

fn runtime(devices: usize) -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap()
}

fn rows() -> Sharding {
    Sharding::new([Some("data")])
}

/// Wide rows, which start at multiples of 64 bytes, narrow ones, which do not, and one without
/// elements.
fn data(count: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("wide", [count, 16], (0..16 * count).map(|i| i as f32).collect::<Vec<_>>())
        .array("narrow", [count, 3], (0..3 * count).map(|i| i as u8).collect::<Vec<_>>())
        .array("empty", [count, 0], [0f32; 0])
        .array("scalar", [count], (0..count as i64).collect::<Vec<_>>())
        .build()
        .unwrap()
}

/// The bytes of a field of the host's batch, or of its mask, and of one row of it.
fn on_host(host: &HostBatch, array: usize) -> (Vec<u8>, usize) {
    match host.fields().get(array) {
        Some(field) => (host.field_bytes(array).unwrap().to_vec(), field.sample_bytes().unwrap()),
        None => (host.mask().iter().flat_map(|m| m.to_ne_bytes()).collect(), 4),
    }
}

/// Compares each device's buffer with the rows that `rows_of` expects.
fn compare(
    device: &DeviceBatch,
    host: &HostBatch,
    rows_of: impl Fn(usize) -> std::ops::Range<usize>,
) {
    assert_eq!(
        (device.epoch, device.index, device.valid),
        (host.epoch(), host.index(), host.valid())
    );
    assert_eq!(device.arrays.len(), host.fields().len() + 1);
    for (i, array) in device.arrays.iter().enumerate() {
        let (bytes, row) = on_host(host, i);
        assert_eq!(array.ty().shape[0], host.global_batch_size());
        for (shard, buffer) in array.shards().iter().enumerate() {
            let rows = rows_of(shard);
            assert_eq!(buffer.dims()[0], rows.len(), "array {i} on device {shard}");
            let device_bytes = buffer.read().unwrap().wait().unwrap();
            assert_eq!(
                &device_bytes[..],
                &bytes[rows.start * row..rows.end * row],
                "array {i} on device {shard}"
            );
        }
    }
}

#[test]
fn each_device_has_its_rows_and_no_others() {
    for devices in [1, 2, 8] {
        let runtime = runtime(devices);
        for workers in [0, 2] {
            let builder = DataLoader::builder(data(60))
                .batch_size(16)
                .shuffle(true)
                .seed(2)
                .num_workers(workers);
            let replicas = Replicas::from_runtime(&runtime, &rows()).unwrap();
            assert_eq!(replicas, Replicas { devices, ..Replicas::default() });
            let loader = builder.build().unwrap().distributed(replicas).unwrap();
            let each = loader.per_device_batch_size();
            // The batches are first kept together, then one at a time, so that memory is reused.
            let batches: Vec<DeviceBatch> =
                loader.prefetch_to(&runtime, &rows(), 1, 0).collect::<Result<_>>().unwrap();
            assert_eq!(batches.len(), 4);
            for (moved, host) in batches.iter().zip(loader.epoch(1)) {
                compare(moved, &host.unwrap(), |shard| shard * each..(shard + 1) * each);
            }
            for (moved, host) in
                loader.epochs(1..4, 3).prefetch_to(&runtime, &rows()).zip(loader.epochs(1..4, 3))
            {
                compare(&moved.unwrap(), &host.unwrap(), |shard| shard * each..(shard + 1) * each);
            }
            for buffer in
                batches.iter().flat_map(|batch| &batch.arrays).flat_map(|array| array.shards())
            {
                assert!(runtime.devices().contains(buffer.device()));
            }
        }
    }
}

#[test]
fn a_batch_can_be_whole_on_every_device_or_split_along_some_axes_of_the_mesh() {
    let loader = DataLoader::builder(data(20)).batch_size(16).build().unwrap();
    let host = loader.epoch(0).nth(1).unwrap().unwrap();
    let runtime = runtime(8);
    compare(&host.to_devices(&runtime, &Sharding::replicated()).unwrap(), &host, |_| 0..16);

    let grid = runtime.with_mesh(&Mesh::new([("data", 4), ("model", 2)]).unwrap()).unwrap();
    compare(&host.to_devices(&grid, &rows()).unwrap(), &host, |shard| {
        shard / 2 * 4..shard / 2 * 4 + 4
    });
    let along_both = Sharding::over([vec!["data", "model"]]);
    compare(&host.to_devices(&grid, &along_both).unwrap(), &host, |shard| shard * 2..shard * 2 + 2);
    let swapped = Sharding::over([vec!["model", "data"]]);
    let part = |shard: usize| shard % 2 * 4 + shard / 2;
    compare(&host.to_devices(&grid, &swapped).unwrap(), &host, |shard| {
        part(shard) * 2..part(shard) * 2 + 2
    });

    let parts = |sharding: &Sharding| Replicas::from_runtime(&grid, sharding).unwrap().devices;
    assert_eq!(
        [parts(&rows()), parts(&along_both), parts(&swapped), parts(&Sharding::replicated())],
        [4, 8, 8, 1]
    );
}

#[test]
fn the_devices_read_aligned_rows_in_place_and_share_one_copy_of_whole_batches() {
    let runtime = runtime(8);
    let loader = DataLoader::builder(data(16)).batch_size(16).build().unwrap();
    let host = loader.epoch(0).next().unwrap().unwrap();
    let address = |array: usize| match host.fields().get(array) {
        Some(_) => host.field_bytes(array).unwrap().as_ptr() as usize,
        None => host.mask().as_ptr() as usize,
    };
    let split = host.to_devices(&runtime, &rows()).unwrap();
    for (shard, buffer) in split.arrays[0].shards().iter().enumerate() {
        // Two rows of 64 bytes each.
        assert_eq!(buffer.address().unwrap(), address(0) + shard * 128, "device {shard}");
    }
    // Each device has six bytes, so only the rows of the first device start at a multiple of 64.
    assert_eq!(split.arrays[1].shards()[0].address().unwrap(), address(1));
    assert_ne!(split.arrays[1].shards()[1].address().unwrap(), address(1) + 6);

    let whole = host.to_devices(&runtime, &Sharding::replicated()).unwrap();
    for array in [0, 1, 3, 4] {
        for buffer in whole.arrays[array].shards() {
            assert_eq!(buffer.address().unwrap(), address(array), "array {array}");
        }
    }
}

#[test]
fn memory_is_used_again_only_when_all_devices_are_done_with_it() {
    let runtime = runtime(8);
    let loader = DataLoader::builder(data(16)).batch_size(16).build().unwrap();
    let next = || loader.epoch(0).next().unwrap().unwrap();
    let address = |host: &HostBatch| host.field_bytes(0).unwrap().as_ptr() as usize;
    let host = next();
    let first = address(&host);
    let expected = host.clone();
    let moved = host.to_devices(&runtime, &rows()).unwrap();
    compare(&moved, &expected, |shard| shard * 2..shard * 2 + 2);
    drop((host, expected));
    // Only the devices hold the memory now, and nothing else may be written to it.
    for epoch in 1..20 {
        assert_ne!(address(&loader.epoch(epoch).next().unwrap().unwrap()), first);
    }
    compare(&moved, &next(), |shard| shard * 2..shard * 2 + 2);
    drop(moved);
    // The plugin releases it on its own thread.
    let patience = std::time::Instant::now();
    let mut held_batches = Vec::new();
    while held_batches.iter().all(|host| address(host) != first) {
        assert!(
            patience.elapsed() < std::time::Duration::from_secs(20),
            "the memory never came back"
        );
        held_batches.truncate(2);
        held_batches.push(next());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_cannot_be_split_is_an_error() {
    let runtime = runtime(8);
    let loader = |size: usize| DataLoader::builder(data(40)).batch_size(size).build().unwrap();
    let message = |loader: &DataLoader, sharding: &Sharding| -> Error {
        let error = loader.prefetch_to(&runtime, sharding, 0, 0).next().unwrap().unwrap_err();
        assert!(error.is_usage(), "{error}");
        error
    };
    let error = message(&loader(20), &rows()).to_string();
    assert!(error.contains("20") && error.contains("8 devices"), "{error}");
    let error = message(&loader(16), &Sharding::new([Some("model")])).to_string();
    assert!(error.contains("the mesh is data=8"), "{error}");
    let error = message(&loader(16), &Sharding::new([None, Some("data")])).to_string();
    assert!(error.contains("splits only its first axis"), "{error}");
    let unknown = Replicas::from_runtime(&runtime, &Sharding::new([Some("model")])).unwrap_err();
    assert!(unknown.is_usage() && unknown.to_string().contains("the mesh is data=8"), "{unknown}");

    // A part of a batch, for devices that need the whole batch.
    let part = loader(16)
        .distributed(Replicas { devices: 8, num_processes: 2, process_index: 1 })
        .unwrap();
    let error = message(&part, &rows()).to_string();
    assert!(error.contains("needs the rows 0..2") && error.contains("has read 8..16"), "{error}");

    let nothing = HostBatch::collate(&data(3), &[]).unwrap();
    assert_eq!(
        nothing.to_devices(&runtime, &rows()).unwrap().arrays[0].shards()[7].dims(),
        [0, 16]
    );
}
