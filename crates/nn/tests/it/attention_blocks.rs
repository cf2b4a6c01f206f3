//! Attention in blocks, and plain attention with the same settings: values and gradients against
//! PyTorch; on eight devices; what is computed and what is kept.

use crate::common::reference::{Expected, cases, expect, inputs, number, tensor, word};
use crate::common::{assert_all_close, evaluated, fault, values};
use fulmen_nn::attention::{Attention, AttentionMethod};
use fulmen_nn::{Dropout, Module};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, autocast, grad, random,
};
use serde_json::Value;

const METHODS: [AttentionMethod; 2] = [AttentionMethod::Plain, AttentionMethod::Blocks];

/// The settings of a case, in blocks of 4.
fn attention(attrs: &Value) -> Attention {
    let given = |name: &str| Some(&attrs[name]).filter(|value| !value.is_null());
    let causal = attrs["causal"].as_bool().unwrap_or(false);
    let mut attention = Attention::new().causal(causal).block_size(4);
    if let Some(window) = given("window") {
        attention = attention.window(number(window) as usize);
    }
    if let Some(scale) = given("scale") {
        attention = attention.scale(number(scale));
    }
    if let Some(cap) = given("softcap") {
        attention = attention.softcap(number(cap));
    }
    if let Some(ids) = given("segment_ids") {
        attention = attention.segment_ids(tensor(ids));
    }
    if let Some(mask) = given("mask") {
        attention = attention.mask(tensor(mask));
    }
    attention
}

#[test]
fn all_methods_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 1e-5);
    for method in [AttentionMethod::Plain, AttentionMethod::Blocks, AttentionMethod::Kernel] {
        for case in cases("attention_blocks.json") {
            // Other files have what else is plain.
            let attrs = &case["attrs"];
            let is_new =
                ["window", "softcap", "segment_ids"].iter().any(|name| !attrs[name].is_null());
            if method == AttentionMethod::Plain && !is_new {
                continue;
            }
            assert_eq!(word(&case["op"], "op"), "attention");
            let inputs = inputs(&case);
            let has_mask = inputs.len() > 3 || !attrs["mask"].is_null();
            if method == AttentionMethod::Kernel && has_mask {
                continue;
            }
            let heads = inputs[0].rank() == 4;
            let mut attention = attention(&case["attrs"]).method(method).enable_gqa(heads);
            if let Some(added) = inputs.get(3) {
                attention = attention.mask(added);
            }
            let y = attention.forward(&inputs[0], &inputs[1], &inputs[2]);
            expect(&mut expected, &case, &inputs, &[], &y);
        }
    }
    expected.check();
}

/// Queries, keys and values `[2, 4, 11, 6]`, `[2, 2, 11, 6]` twice.
fn queries_keys_values(dtype: DType) -> [Tensor; 3] {
    [(0, 4), (1, 2), (2, 2)].map(|(seed, heads)| {
        let numbers: Vec<f32> =
            (0..2 * heads * 66).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 25.0 - 2.0).collect();
        Tensor::from_slice(&numbers, [2, heads, 11, 6]).to_dtype(dtype)
    })
}

/// The result and the gradients of the sum of its squares.
fn results(attention: &Attention, [q, k, v]: &[Tensor; 3]) -> Vec<Tensor> {
    let y = attention.forward(q, k, v);
    let mut results = grad(&(&y * &y).to_dtype(DType::F32).sum_all(), &[q, k, v]);
    results.push(y);
    results
}

fn grouped() -> Attention {
    Attention::new().enable_gqa(true).causal(true).block_size(4)
}

#[test]
fn both_methods_drop_the_same_weights_and_have_the_same_second_derivative() {
    let inputs = queries_keys_values(DType::F32);
    let of = |method| {
        let dropout = Dropout::new(0.4);
        dropout.set_random_key(&random::key(7));
        let attention = grouped().dropout(&dropout).softcap(3.0).method(method);
        let mut results = results(&attention, &inputs);
        let slope = results[0].sin().sum_all();
        results.extend(grad(&slope, &inputs));
        results
    };
    let all = evaluated(&METHODS.map(of).concat());
    let (plain, blocks) = all.split_at(all.len() / 2);
    assert_all_close(blocks, plain, 2e-4);
    let dropout = Dropout::new(1.0);
    let everything = grouped().dropout(&dropout).method(AttentionMethod::Blocks);
    assert!(evaluated(&results(&everything, &inputs)).concat().iter().all(|x| *x == 0.0));
}

#[test]
fn sums_of_16_bit_operands_are_not_rounded_to_16_bits() {
    let narrow = queries_keys_values(DType::Bf16);
    let exact = [0, 1, 2].map(|i| narrow[i].to_dtype(DType::F64));
    let wide = [0, 1, 2].map(|i| narrow[i].to_dtype(DType::F32));
    let of = |method, inputs: &[Tensor; 3]| {
        grouped().method(method).forward(&inputs[0], &inputs[1], &inputs[2])
    };
    let mixed = autocast(Some(DType::Bf16), || of(AttentionMethod::Blocks, &wide));
    let blocks = of(AttentionMethod::Blocks, &narrow);
    assert_eq!([mixed.dtype(), blocks.dtype()], [DType::Bf16; 2]);
    let rounded = exact[0].dtype();
    let expected = of(AttentionMethod::Plain, &exact).to_dtype(DType::Bf16).to_dtype(rounded);
    let f64s = of(AttentionMethod::Blocks, &exact);
    let plain = of(AttentionMethod::Plain, &exact);
    let all = evaluated(&[expected, blocks, mixed, plain, f64s]);
    // At most the last of 8 bits differs.
    assert_all_close(&all[1..2], &all[..1], 2f64.powi(-8));
    assert_eq!(all[1], all[2]);
    assert_all_close(&all[4..], &all[3..4], 1e-12);
}

#[test]
fn packed_documents_are_the_documents_alone() {
    let all = queries_keys_values(DType::F32);
    let ids = Tensor::from_slice(&[1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2], [11]);
    let mut tensors = Vec::new();
    for method in METHODS {
        let [q, k, v] = &all;
        let packed = grouped().method(method).segment_ids(&ids).forward(q, k, v);
        let alone = [(0, 5), (5, 6)].map(|(start, length)| {
            let [q, k, v] = [0, 1, 2].map(|i| all[i].narrow(2, start, length));
            grouped().method(method).forward(q, k, v)
        });
        tensors.push(packed);
        tensors.push(Tensor::concatenate(&alone, 2));
    }
    let all = evaluated(&tensors);
    assert_all_close(&all[..1], &all[1..2], 1e-6);
    assert_all_close(&all[2..3], &all[3..], 1e-6);
}

#[test]
fn a_query_that_sees_nothing_gets_zeros_and_no_nan_in_any_gradient() {
    let inputs = queries_keys_values(DType::F32);
    let mask: Vec<bool> = (0..121).map(|i| i / 11 != 6 && i % 11 < 9).collect();
    let mask = Tensor::from_slice(&mask, [11, 11]);
    let zero = Tensor::zeros(DType::F32, []);
    let added = mask.select(&zero, &Tensor::full(DType::F32, [], f64::NEG_INFINITY));
    for mask in [mask, added] {
        let of = |method| results(&grouped().mask(&mask).method(method), &inputs);
        let all = evaluated(&METHODS.map(of).concat());
        let (plain, blocks) = all.split_at(all.len() / 2);
        assert_all_close(blocks, plain, 2e-5);
        assert!(blocks[3][36..42].iter().all(|x| *x == 0.0), "{:?}", &blocks[3][36..42]);
    }
}

/// The pairs of blocks that the loop of a program runs over.
fn pairs(attention: Attention) -> usize {
    let x = TensorType::new(DType::F32, [2, 16, 3]);
    let attention = attention.block_size(4).method(AttentionMethod::Blocks);
    let function = Function::trace("attend", x, |x| attention.forward(&x, &x, &x));
    let program = function.stablehlo().unwrap();
    let count = |n: usize| program.matches(&format!("tensor<{n}xi32>")).count();
    // The longest list of numbers has the starts of the pairs.
    (1..=16).rfind(|&n| count(n) > 0).unwrap()
}

#[test]
fn hidden_blocks_are_not_computed() {
    assert_eq!(pairs(Attention::new()), 16);
    assert_eq!(pairs(Attention::new().causal(true)), 10);
    assert_eq!(pairs(Attention::new().causal(true).window(4)), 7);
    assert_eq!(pairs(Attention::new().causal(true).window(1)), 4);
    // The window ends at the query; it hides no later keys.
    assert_eq!(pairs(Attention::new().window(4)), 13);
}

#[test]
fn blocks_of_other_documents_are_not_computed() {
    // In both samples, blocks 0 and 1 are of other documents than 2 and 3.
    let ids = [1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3];
    let others = [1, 1, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 5, 5, 5];
    let ids = Tensor::from_slice(&[ids, others].concat(), [2, 16]);
    let numbers = |seed: i32| -> Vec<f32> {
        (0..192).map(|i| ((i * 37 + seed) % 101) as f32 / 25.0 - 2.0).collect()
    };
    let [q, k, v] = [0, 11, 22].map(|seed| Tensor::from_slice(&numbers(seed), [2, 2, 16, 3]));
    let of = |method, v: &Tensor| {
        let attention = grouped().segment_ids(&ids).method(method);
        let results = results(&attention, &[q.clone(), k.clone(), v.clone()]);
        let slope = results[0].sin().sum_all();
        let second = grad(&slope, &[&q, &k]);
        results.into_iter().chain(second).collect::<Vec<_>>()
    };
    let all = evaluated(&METHODS.map(|method| of(method, &v)).concat());
    let (plain, blocks) = all.split_at(all.len() / 2);
    assert_all_close(blocks, plain, 2e-4);
    // A weight of zero times NaN is NaN, unless it is not computed.
    let early = Tensor::arange(DType::I32, 16).lt(8.0).unsqueeze(-1);
    let nan = early.select(&Tensor::full(DType::F32, [], f64::NAN), &v);
    for (method, computed) in [(AttentionMethod::Plain, true), (AttentionMethod::Blocks, false)] {
        let late = of(method, &nan)[..4].iter().map(|x| x.narrow(2, 8, 8)).collect::<Vec<_>>();
        for (result, without) in evaluated(&late).iter().zip(&blocks[..4]) {
            let is_nan = result.iter().any(|x| x.is_nan());
            assert_eq!(is_nan, computed, "{method}: {result:?}, {without:?}");
        }
    }
}

/// The memory that the gradients need besides arguments and results.
fn temporaries(method: AttentionMethod, length: usize) -> i64 {
    let ty = TensorType::new(DType::F32, [1, 2, length, 8]);
    let function = Function::trace("gradients", [&ty, &ty, &ty], |[q, k, v]| {
        let attention = Attention::new().causal(true).method(method).block_size(64);
        let y = attention.forward(&q, &k, &v);
        grad(&(&y * &y).sum_all(), &[q, k, v])
    });
    let compiled = Runtime::global().unwrap().compile(&function).unwrap();
    compiled.executable().memory_analysis().unwrap().temp_bytes
}

#[test]
fn memory_grows_with_the_length_and_not_with_its_square() {
    let [short, long] = [512, 1024].map(|length| temporaries(AttentionMethod::Blocks, length));
    assert!(long < 2 * short, "{short} and {long} bytes");
    let square = temporaries(AttentionMethod::Plain, 1024);
    assert!(square >= 4 * 2 * 1024 * 1024 && 10 * long < square, "{long} and {square} bytes");
}

/// The results with samples or heads split over the devices.
fn on_devices(devices: usize, axis: usize) -> Vec<Vec<f64>> {
    let mesh = Mesh::new([("data", devices)]).unwrap();
    let runtime =
        Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap().with_mesh(&mesh).unwrap();
    let mut names = [None, None];
    names[axis] = Some("data");
    let split = Sharding::new(names);
    let shape = [8, 8, 10, 4];
    let numbers = |i: usize| {
        let data: Vec<f32> =
            (0..2560).map(|j| ((j * 37 + i * 11) % 101) as f32 / 25.0 - 2.0).collect();
        Literal::from_slice(&data, shape).unwrap()
    };
    let inputs = [0, 1, 2].map(numbers);
    let ty = TensorType::new(DType::F32, shape);
    let mut function = Function::trace("step", [&ty, &ty, &ty], |x| {
        let ids = Tensor::from_slice(&[1, 1, 1, 1, 2, 2, 2, 2, 2, 2], [10]);
        let dropout = Dropout::new(0.2);
        dropout.set_random_key(&random::key(3));
        let attention = Attention::new().causal(true).segment_ids(ids).dropout(&dropout);
        let attention = attention.block_size(4).method(AttentionMethod::Blocks);
        results(&attention, &x)
    });
    for input in 0..3 {
        function = function.shard_parameter(input, split.clone());
    }
    for result in 0..4 {
        function = function.shard_result(result, split.clone());
    }
    let compiled = runtime.compile(&function).unwrap();
    let arrays = inputs.map(|literal| runtime.to_devices(&literal, &split).unwrap());
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    if devices > 1 {
        let collectives = compiled.executable().hlo().unwrap().collectives();
        assert!(collectives.is_empty(), "{collectives:?}");
    }
    let arrays = outputs.arrays.iter().collect::<Vec<_>>();
    runtime.read(&arrays).unwrap().wait().unwrap().iter().map(Literal::to_f64).collect()
}

#[test]
fn eight_devices_do_what_one_does_without_gathering() {
    let one = on_devices(1, 0);
    for axis in [0, 1] {
        assert_all_close(&on_devices(8, axis), &one, 1e-5);
    }
}

#[test]
fn devices_with_other_documents_agree_which_blocks_to_compute() {
    let of = |devices: usize| {
        let mesh = Mesh::new([("data", devices)]).unwrap();
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap();
        let runtime = runtime.with_mesh(&mesh).unwrap();
        let split = Sharding::new([Some("data")]);
        let numbers: Vec<f32> = (0..1536).map(|i| ((i * 37) % 101) as f32 / 25.0 - 2.0).collect();
        let x = Literal::from_slice(&numbers, [8, 16, 12]).unwrap();
        // The document of sample `i` that begins at `2·i` is the second.
        let ids: Vec<i32> = (0..128).map(|i| 1 + i32::from(i % 16 >= i / 16 * 2)).collect();
        let ids = Literal::from_slice(&ids, [8, 16]).unwrap();
        let types = [x.ty().clone(), ids.ty().clone()];
        let function = Function::trace("step", &types, |x| {
            let attention = Attention::new().causal(true).segment_ids(&x[1]).block_size(4);
            let x = [x[0].clone(), x[0].clone() * 0.5, x[0].sin()];
            results(&attention.method(AttentionMethod::Blocks), &x)
        });
        let function = (0..2).fold(function, |f, i| f.shard_parameter(i, split.clone()));
        let function = (0..4).fold(function, |f, i| f.shard_result(i, split.clone()));
        let arrays = [x, ids].map(|literal| runtime.to_devices(&literal, &split).unwrap());
        let compiled = runtime.compile(&function).unwrap();
        let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
        let arrays = outputs.arrays.iter().collect::<Vec<_>>();
        let values = runtime.read(&arrays).unwrap().wait().unwrap();
        values.iter().map(Literal::to_f64).collect::<Vec<_>>()
    };
    assert_all_close(&of(8), &of(1), 1e-5);
}

#[test]
fn what_blocks_cannot_do_is_told() {
    let x = Tensor::zeros(DType::F32, [2, 3, 4]);
    let blocks = Attention::new().method(AttentionMethod::Blocks);
    let text = fault(&blocks.forward_with_weights(&x, &x, &x).0);
    assert!(text.contains("ask for them with the method `plain`"), "{text}");
    assert!(text.contains("attention_blocks.rs"), "{text}");
    let text = fault(&blocks.clone().block_size(0).forward(&x, &x, &x));
    assert!(text.contains("the block size is 0"), "{text}");
    let text =
        fault(&blocks.clone().mask(Tensor::zeros(DType::F32, [3, 1, 4])).forward(&x, &x, &x));
    assert!(
        text.contains("the mask f32[3, 1, 4] does not broadcast to the scores f32[2, 3, 3]"),
        "{text}"
    );
    for ids in [
        Tensor::zeros(DType::I32, [4]),
        Tensor::zeros(DType::F32, [3]),
        Tensor::zeros(DType::I32, [1, 2, 3]),
        Tensor::zeros(DType::I32, [3, 3]),
    ] {
        for method in METHODS {
            let text =
                fault(&Attention::new().method(method).segment_ids(&ids).forward(&x, &x, &x));
            assert!(text.contains("must be integers [length] or [batch, length]"), "{text}");
        }
    }
    let y = blocks.clone().forward(&x, &x, &x);
    assert_eq!(values(&y), [0.0; 24]);
    let kernel = blocks.method(AttentionMethod::Kernel).mask(Tensor::zeros(DType::F32, [3]));
    let text = fault(&kernel.forward(&x, &x, &x));
    assert!(text.contains("attention by `kernel` has neither masks nor dropout"), "{text}");
}
