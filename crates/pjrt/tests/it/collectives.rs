//! Programs over several devices: launches never hang, on any thread.

use crate::common::*;
use fulmen_pjrt::{Argument, Buffer, Client, CompileOptions, LoadedExecutable};

const DEVICES: usize = 8;

fn reduction(client: &Client) -> LoadedExecutable {
    client.compile(&all_reduce(DEVICES), &CompileOptions::new().replicas(DEVICES)).unwrap()
}

fn inputs(client: &Client) -> Vec<Buffer> {
    (0..DEVICES).map(|device| put(client, &[device as f32; 4], device)).collect()
}

fn borrow(inputs: &[Buffer]) -> Vec<Vec<Argument<'_>>> {
    inputs.iter().map(|buffer| vec![Argument::Borrow(buffer)]).collect()
}

/// Without the limit, the plugin would block after about a hundred, and end the process after 40
/// seconds.
#[test]
fn ten_thousand_launches_without_a_wait() {
    let client = client(DEVICES as i64);
    let program = reduction(&client);
    let inputs = inputs(&client);
    let mut last = None;
    for _ in 0..10_000 {
        last = Some(program.execute(borrow(&inputs)).unwrap());
    }
    for outputs in last.unwrap().outputs {
        assert_eq!(get(&outputs[0]), [28.0; 4]);
    }
}

#[test]
fn chained_launches_without_a_wait() {
    let client = client(DEVICES as i64);
    let program = reduction(&client);
    let mut state = inputs(&client);
    for _ in 0..300 {
        let arguments = state.into_iter().map(|buffer| vec![Argument::Donate(buffer)]).collect();
        state = program.execute(arguments).unwrap().outputs.into_iter().flatten().collect();
    }
    // Each step multiplies by eight, and 28 * 8^299 exceeds a float.
    assert_eq!(get(&state[3]), [f32::INFINITY; 4]);
}

#[test]
fn threads_and_programs_take_turns() {
    let client = client(DEVICES as i64);
    let programs = [reduction(&client), reduction(&client)];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            let program = &programs[thread % 2];
            scope.spawn(move || {
                let inputs = inputs(client);
                for _ in 0..200 {
                    program.execute(borrow(&inputs)).unwrap();
                }
                assert_eq!(
                    get(&program.execute(borrow(&inputs)).unwrap().outputs[7][0]),
                    [28.0; 4]
                );
            });
        }
    });
}

#[test]
fn arguments_on_swapped_devices_are_refused() {
    let client = client(DEVICES as i64);
    let program = reduction(&client);
    let mut inputs = inputs(&client);
    inputs.swap(2, 5);
    says(
        &program.execute(borrow(&inputs)).unwrap_err(),
        &["argument 0 of", "must be on", "use Buffer::copy_to_device"],
    );
    says(
        &program.execute(borrow(&inputs[..7])).unwrap_err(),
        &["runs on 8 devices of this host", "given for 7"],
    );
}

/// `[5]` is the device with that number, not five devices.
#[test]
fn a_program_assigned_to_one_device_runs_there_and_nowhere_else() {
    let client = client(DEVICES as i64);
    let options = CompileOptions::new().device_assignment([vec![5]]);
    let program = client.compile(&increment(""), &options).unwrap();
    assert_eq!(program.devices(), &client.devices()[5..6]);
    let on = |device: usize| put(&client, &[1.0, 2.0, 3.0, 4.0], device);
    let input = on(5);
    let outputs = run(&program, vec![Argument::Borrow(&input)]).outputs;
    assert_eq!(outputs.len(), 1, "no other device took part");
    assert_eq!(outputs[0][0].device(), &client.devices()[5]);
    assert_eq!(get(&outputs[0][0]), [2.0, 3.0, 4.0, 5.0]);
    let elsewhere = on(0);
    let error = program.execute(vec![vec![Argument::Borrow(&elsewhere)]]).unwrap_err();
    says(&error, &["must be on", "5", "use Buffer::copy_to_device"]);
    // Each device only once, and only existing ones.
    for (ids, part) in [(vec![8], "names device 8"), (vec![-1], "names device -1")] {
        let options = CompileOptions::new().device_assignment([ids]);
        says(&client.compile(&increment(""), &options).unwrap_err(), &[part]);
    }
    let twice = CompileOptions::new().replicas(2).device_assignment([vec![5], vec![5]]);
    says(&client.compile(&all_reduce(2), &twice).unwrap_err(), &["names device 5 twice"]);
}

/// Two devices of eight, in a different order.
#[test]
fn a_program_over_some_devices_takes_its_arguments_in_their_order() {
    let client = client(DEVICES as i64);
    let options = CompileOptions::new().replicas(2).device_assignment([vec![6], vec![2]]);
    let program = client.compile(&all_reduce(2), &options).unwrap();
    let ids = program.devices().iter().map(|device| device.id()).collect::<Vec<_>>();
    assert_eq!(ids, [6, 2]);
    let inputs = [put(&client, &[1.0; 4], 6), put(&client, &[20.0; 4], 2)];
    for (output, id) in program.execute(borrow(&inputs)).unwrap().outputs.iter().zip(ids) {
        assert_eq!((get(&output[0]), output[0].device().id()), (vec![21.0; 4], id));
    }
}

#[test]
fn a_split_program_has_the_results_of_the_whole_one() {
    let client = client(4);
    let mlir = "module {
        sdy.mesh @mesh = <[\"data\"=4]>
        func.func @main(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>})
            -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %y = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
             : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
          return %y : tensor<2xf32>
        }
      }";
    let program = client.compile(mlir, &CompileOptions::new().partitions(4)).unwrap();
    let parts = (0..4)
        .map(|device| {
            let part = bytes(&[device as f32, 1.0, 10.0, 1.0]);
            client
                .buffer_from_host(
                    &part,
                    fulmen_pjrt::ElementType::F32,
                    &[2, 2],
                    &client.devices()[device],
                )
                .unwrap()
        })
        .collect::<Vec<_>>();
    for outputs in program.execute(borrow(&parts)).unwrap().outputs {
        assert_eq!(get(&outputs[0]), [46.0, 8.0]);
    }
}

/// A borrow on one device keeps the argument on all of them.
#[test]
fn donating_on_only_some_devices_is_safe() {
    let client = client(2);
    let mlir = all_reduce(2)
        .replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}");
    let program = client.compile(&mlir, &CompileOptions::new().replicas(2)).unwrap();
    assert_eq!(program.signature().donated, [true]);
    let kept = put(&client, &[1.0; 4], 0);
    let given = put(&client, &[2.0; 4], 1);
    let execution = program
        .execute(vec![vec![Argument::Borrow(&kept)], vec![Argument::Donate(given)]])
        .unwrap();
    for outputs in &execution.outputs {
        assert_eq!(get(&outputs[0]), [3.0; 4]);
    }
    assert_eq!(get(&kept), [1.0; 4]);
}
