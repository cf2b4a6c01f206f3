//! Transfers to the device and back, zero-copy lifetimes, running reads.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::common::*;
use fulmen_pjrt::{Buffer, ElementType, HostBuffer};

#[test]
fn every_element_type_survives_a_round_trip() {
    let client = client(1);
    for &element in ElementType::ALL {
        let count = 6 * element.host_bytes();
        // Bits that are valid for every type, in as many elements as fit.
        let bytes = (0..count).map(|i| (i % 2) as u8).collect::<Vec<_>>();
        let buffer =
            client.buffer_from_host(&bytes, element, &[2, 3], &client.devices()[0]).unwrap();
        assert_eq!(
            (buffer.element_type(), buffer.dims(), buffer.size_in_bytes()),
            (element, &[2, 3][..], count)
        );
        assert_eq!(buffer.read().unwrap().wait().unwrap()[..], bytes[..], "{element}");
    }
}

#[test]
fn scalars_and_empty_arrays_survive_a_round_trip() {
    let client = client(1);
    let device = &client.devices()[0];
    let scalar = client.buffer_from_host(&[7], ElementType::U8, &[], device).unwrap();
    assert_eq!(scalar.read().unwrap().wait().unwrap()[..], [7]);
    let empty = client.buffer_from_host(&[], ElementType::F32, &[0, 5], device).unwrap();
    assert_eq!(empty.array_type().to_string(), "f32[0,5]");
    assert!(empty.read().unwrap().wait().unwrap().is_empty());
    let shared = Arc::new(HostBuffer::zeroed(0).unwrap());
    let empty = client.buffer_from_shared(&shared, 0, ElementType::F32, &[0], device).unwrap();
    assert!(empty.read().unwrap().wait().unwrap().is_empty());
}

#[test]
fn a_transposed_result_is_read_row_major() {
    let client = client(1);
    let program = compile(
        &client,
        "func.func @main(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
           %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
           return %y : tensor<3x2xf32>
         }",
    );
    let x = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let x = client.buffer_from_host(&x, ElementType::F32, &[2, 3], &client.devices()[0]).unwrap();
    assert_eq!(
        get(&run(&program, vec![(&x).into()]).outputs[0][0]),
        [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    );
}

#[test]
fn bytes_that_do_not_fit_are_refused() {
    let client = client(1);
    let device = &client.devices()[0];
    let check = |bytes: &[u8], dims: &[usize], expected: &str| {
        let error = client.buffer_from_host(bytes, ElementType::F32, dims, device).unwrap_err();
        assert!(error.is_usage());
        says(&error, &[expected]);
    };
    check(&[0; 12], &[2, 2], "12 bytes were given for f32[2,2], which has 16");
    check(&[], &[], "0 bytes were given for f32[], which has 4");
    check(&[0; 4], &[usize::MAX, usize::MAX], "more bytes than a program can address");
    check(&[], &[1 << 63, 0], "more bytes than a program can address");

    let host = Arc::new(HostBuffer::zeroed(64).unwrap());
    for (offset, dims) in [(0, vec![17]), (64, vec![1]), (61, vec![1]), (usize::MAX, vec![1])] {
        let error =
            client.buffer_from_shared(&host, offset, ElementType::F32, &dims, device).unwrap_err();
        says(&error, &["do not fit into a host buffer of 64", &format!("at offset {offset}")]);
    }
}

#[test]
fn a_device_of_another_client_is_refused() {
    let one = client(1);
    let other = client(1);
    let error = one.buffer_from_host(&[0], ElementType::U8, &[], &other.devices()[0]).unwrap_err();
    says(&error, &["belongs to a different client"]);
    let error = put(&one, &[1.0], 0).copy_to_device(&other.devices()[0]).unwrap_err();
    says(&error, &["the devices belong to different clients"]);
}

#[test]
fn a_buffer_is_copied_to_another_device() {
    let client = client(2);
    let there = put(&client, &[1.0, 2.0], 0).copy_to_device(&client.devices()[1]).unwrap();
    assert_eq!(there.device(), &client.devices()[1]);
    assert_eq!(get(&there), [1.0, 2.0]);
}

#[test]
fn the_bytes_can_be_freed_when_the_call_returns() {
    let client = client(1);
    let mut bytes = vec![1_u8; 1 << 22];
    let buffer =
        client.buffer_from_host(&bytes, ElementType::U8, &[1 << 22], &client.devices()[0]).unwrap();
    bytes.fill(2);
    drop(bytes);
    assert!(buffer.read().unwrap().wait().unwrap().iter().all(|&byte| byte == 1));
}

fn shared(len: usize, value: u8) -> Arc<HostBuffer> {
    let mut host = HostBuffer::zeroed(len).unwrap();
    host.fill(value);
    Arc::new(host)
}

/// The plugin reports soon, on its own thread, that it has finished.
fn wait_until_freed(host: &Weak<HostBuffer>) {
    let start = Instant::now();
    while host.strong_count() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the host memory is never released");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn aligned_host_memory_is_read_in_place_and_lives_as_long_as_the_buffer() {
    let client = client(1);
    let host = shared(256, 5);
    let address = host.as_ptr() as usize;
    let buffer = client
        .buffer_from_shared(&host, 64, ElementType::U8, &[128], &client.devices()[0])
        .unwrap();
    assert_eq!(buffer.address().unwrap(), address + 64, "it is not copied");
    let weak = Arc::downgrade(&host);
    drop(host);
    assert_eq!(weak.strong_count(), 1, "the plugin holds it");
    assert_eq!(buffer.read().unwrap().wait().unwrap()[..], [5; 128]);
    drop(buffer);
    wait_until_freed(&weak);
}

#[test]
fn misaligned_host_memory_works_too() {
    let client = client(1);
    let host = shared(256, 6);
    let buffer =
        client.buffer_from_shared(&host, 4, ElementType::U8, &[100], &client.devices()[0]).unwrap();
    let weak = Arc::downgrade(&host);
    drop(host);
    assert_eq!(buffer.read().unwrap().wait().unwrap()[..], [6; 100]);
    drop(buffer);
    wait_until_freed(&weak);
}

#[test]
fn shared_memory_cannot_be_written_while_a_device_may_read_it() {
    let client = client(1);
    let mut host = shared(64, 1);
    assert!(Arc::get_mut(&mut host).is_some());
    let buffer =
        client.buffer_from_shared(&host, 0, ElementType::U8, &[64], &client.devices()[0]).unwrap();
    assert!(Arc::get_mut(&mut host).is_none());
    drop(buffer);
    let start = Instant::now();
    while Arc::get_mut(&mut host).is_none() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
}

#[test]
fn donated_zero_copy_memory_is_not_written_to() {
    let client = client(1);
    let program = compile(&client, &increment("{tf.aliasing_output = 0 : i32}"));
    let host = shared(16, 0);
    let x =
        client.buffer_from_shared(&host, 0, ElementType::F32, &[4], &client.devices()[0]).unwrap();
    assert_eq!(get(&run(&program, vec![x.into()]).outputs[0][0]), [1.0; 4]);
    assert_eq!(host[..], [0; 16]);
    let weak = Arc::downgrade(&host);
    drop(host);
    wait_until_freed(&weak);
}

/// A program that takes a while.
fn slow(client: &fulmen_pjrt::Client) -> Buffer {
    let program = compile(
        client,
        "func.func @main(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
           %n = stablehlo.constant dense<0> : tensor<i32>
           %end = stablehlo.constant dense<60> : tensor<i32>
           %one = stablehlo.constant dense<1> : tensor<i32>
           %r:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<512x512xf32> cond {
             %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %c : tensor<i1>
           } do {
             %j = stablehlo.add %i, %one : tensor<i32>
             %z = stablehlo.dot %y, %x : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
             stablehlo.return %j, %z : tensor<i32>, tensor<512x512xf32>
           }
           return %r#1 : tensor<512x512xf32>
         }",
    );
    let mut identity = vec![0.0; 512 * 512];
    (0..512).for_each(|i| identity[i * 513] = 1.0);
    let x = bytes(&identity);
    let x =
        client.buffer_from_host(&x, ElementType::F32, &[512, 512], &client.devices()[0]).unwrap();
    run(&program, vec![x.into()]).outputs.remove(0).remove(0)
}

#[test]
fn starting_a_read_does_not_wait_but_dropping_it_does() {
    let client = client(1);
    let result = slow(&client);
    let start = Instant::now();
    let read = result.read().unwrap();
    let started = start.elapsed();
    let ready_at_once = read.is_ready().unwrap();
    drop(read);
    assert!(
        result.ready().unwrap().is_ready().unwrap(),
        "the drop waited for the copy, and so for the program"
    );
    assert!(ready_at_once || start.elapsed() > started, "the read had to wait");

    // The program, the input and the client may be dropped; the read holds what it needs.
    let read = slow(&client).read().unwrap();
    drop(client);
    let identity = floats(&read.wait().unwrap());
    assert!(
        identity.iter().enumerate().all(|(i, &value)| value == f32::from(u8::from(i % 513 == 0)))
    );
}

#[test]
fn too_large_an_array_is_out_of_memory() {
    let client = client(1);
    let program = compile(
        &client,
        "func.func @main(%x: tensor<f32>) -> tensor<1000000x1000000x100xf32> {
           %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1000000x1000000x100xf32>
           return %y : tensor<1000000x1000000x100xf32>
         }",
    );
    let x = client.buffer_from_host(&[0; 4], ElementType::F32, &[], &client.devices()[0]).unwrap();
    let outcome =
        program.execute(vec![vec![x.into()]]).and_then(|run| run.outputs[0][0].ready()?.wait());
    assert!(outcome.as_ref().unwrap_err().is_out_of_memory(), "{outcome:?}");
}
