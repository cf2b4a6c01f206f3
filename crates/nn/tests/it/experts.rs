//! Mixtures of experts: values and gradients against transformers and against one product after the
//! other; in 16 bits; on eight devices; and what is rejected.

use crate::common::reference::{Expected, cases, count, flag, numbers, pair, tensor};
use crate::common::{assert_all_close, evaluated, fault, set_simple_values};
use fulmen_nn::axes::AxisRules;
use fulmen_nn::{MixtureOfExperts, Module, RouterScores, activation};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, autocast, grad,
};
use serde_json::Value;

/// The layer of a case, with its parameters.
fn layer(case: &Value) -> MixtureOfExperts {
    let how = &case["how"];
    let mut moe = MixtureOfExperts::new(6, 5, count(&how["experts"])).top_k(2);
    if how["normalize"].is_boolean() {
        moe = moe.normalize(flag(&how["normalize"]));
    }
    if how["groups"].is_array() {
        let (groups, used) = pair(&how["groups"]);
        moe = moe.groups(groups, used).scale(how["scale"].as_f64().unwrap());
    }
    if how["scores_per_group"].is_u64() {
        moe = moe.scores_per_group(count(&how["scores_per_group"]));
    }
    if how["sigmoid"].is_boolean() {
        moe = moe.scores(RouterScores::Sigmoid).balance_bias(true);
        let bias: Vec<f32> = numbers(&how["bias"]).iter().map(|&b| b as f32).collect();
        let buffer = moe.gate.e_score_correction_bias.as_ref().unwrap();
        buffer.set(Tensor::from_slice(&bias, [bias.len()]));
    }
    if how["shared"].is_u64() {
        moe = moe.shared_experts(count(&how["shared"]), flag(&how["gated"]));
    }
    if let Some(factor) = how["capacity"].as_f64() {
        moe = moe.capacity_factor(factor);
    }
    for (name, parameter) in moe.parameters() {
        parameter.set(of_name(&case["parameters"], &name));
    }
    moe
}

/// The value of a parameter in a table with transformers' names, which joins two of them.
fn of_name(table: &Value, name: &str) -> Tensor {
    let joined = match name {
        "experts.gate_proj" => 0,
        "experts.up_proj" => 1,
        _ if table[name].is_null() => {
            return tensor(&table[name.replace("shared_experts", "shared_expert")]);
        }
        _ => return tensor(&table[name]),
    };
    let both = &table["experts.gate_up_proj"];
    let numbers = numbers(both);
    let half = numbers.chunks(5 * 6).skip(joined).step_by(2).flatten();
    let half: Vec<f32> = half.map(|&x| x as f32).collect();
    Tensor::from_slice(&half, [count(&both["shape"][0]), 5, 6])
}

#[test]
fn outputs_gradients_and_losses_are_those_of_transformers() {
    let mut expected = Expected::within(1e-5, 5e-6);
    let all = cases("experts.json");
    // Blocks of one row, of a part of them, and of all.
    let blocks = [Some(1), Some(5), Some(100)];
    let first = blocks.into_iter().map(|block| (&all[0], block));
    for (case, block) in first.chain(all[1..].iter().map(|case| (case, None))) {
        let moe = layer(case);
        let moe = block.map_or(moe.clone(), |rows| moe.clone().block_size(rows));
        let x = tensor(&case["x"]);
        let (y, routing) = moe.forward_with_routing(&x);
        let named = |what: &str| format!("{} in blocks of {block:?}: {what}", case["name"]);
        expected.tensor(named("y"), &y, &case["y"]);
        let number = |name: &str| vec![case[name].as_f64().unwrap()];
        expected.numbers(named("z"), &routing.z_loss(), number("z"));
        expected.numbers(named("dropped"), &routing.dropped, number("dropped"));
        if !case["how"]["groups"].is_array() {
            // transformers has no such loss for groups of experts.
            expected.numbers(named("balance"), &routing.load_balancing_loss(), number("balance"));
        }
        let parameters = moe.parameters();
        let mut inputs: Vec<Tensor> = parameters.iter().map(|(_, w)| w.get()).collect();
        inputs.push(x);
        let gradients = grad(&(y * tensor(&case["cotangent"])).sum_all(), &inputs);
        for ((name, _), gradient) in parameters.iter().zip(&gradients) {
            let value = of_name(&case["gradients"], name);
            expected.numbers(named(name), gradient, value.eval().unwrap().to_f64());
        }
        expected.tensor(named("x"), &gradients[parameters.len()], &case["x_gradient"]);
    }
    expected.check();
}

fn simple(shape: &[usize], factor: usize, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| (i * factor % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_slice(&numbers, shape).to_dtype(dtype)
}

/// All experts for all tokens, times the weights that the router gives: what the layer computes.
fn every_product(moe: &MixtureOfExperts, x: &Tensor) -> Tensor {
    let routing = moe.forward_with_routing(x).1;
    let chosen = routing.experts.one_hot(routing.logits.size(-1)).to_dtype(x.dtype());
    let factors = (chosen * routing.weights.unsqueeze(-1)).sum(-2);
    let [gate, up, down] =
        [&moe.experts.gate_proj, &moe.experts.up_proj, &moe.experts.down_proj].map(|w| w.get());
    let inner = |w: &Tensor| Tensor::einsum("bld,eid->blei", &[x, w]);
    let hidden = activation::silu(&inner(&gate)) * inner(&up) * factors.unsqueeze(-1);
    Tensor::einsum("blei,edi->bld", &[&hidden, &down])
}

/// A value and gradients of everything.
fn results(moe: &MixtureOfExperts, x: &Tensor, y: Tensor) -> Vec<Tensor> {
    let mut inputs: Vec<Tensor> = moe.parameters().iter().map(|(_, w)| w.get()).collect();
    inputs.push(x.clone());
    let slope = (&y * y.sin()).sum_all();
    [vec![y], grad(&slope, &inputs)].concat()
}

#[test]
fn empty_one_sided_and_lonely_experts_are_exact() {
    let mut pairs = [Vec::new(), Vec::new()];
    for (experts, top_k, tokens, one_sided) in
        [(6, 1, 11, true), (6, 2, 11, true), (1, 1, 5, false), (7, 3, 1, false), (3, 3, 4, false)]
    {
        let moe = MixtureOfExperts::new(4, 3, experts).top_k(top_k).block_size(4);
        set_simple_values(&moe);
        moe.to_dtype(DType::F64).unwrap();
        let x = simple(&[2, tokens, 4], 37, DType::F64);
        if one_sided {
            // Expert 2 has the largest logit of all tokens.
            let row = Tensor::arange(DType::I32, experts).eq(2.0).to_dtype(DType::F64);
            moe.gate.weight.set(row.unsqueeze(-1).broadcast_to([experts, 4]));
        }
        let x = if one_sided { x.abs() + 0.1 } else { x };
        pairs[0].extend(results(&moe, &x, moe.forward(&x)));
        pairs[1].extend(results(&moe, &x, every_product(&moe, &x)));
    }
    let [actual, expected] = pairs;
    let all = evaluated(&[actual, expected].concat());
    let (actual, expected) = all.split_at(all.len() / 2);
    assert_all_close(actual, expected, 1e-11);
}

#[test]
fn products_have_16_bits_in_mixed_precision_and_sums_do_not() {
    let moe = MixtureOfExperts::new(8, 16, 4);
    set_simple_values(&moe);
    let x = simple(&[2, 40, 8], 37, DType::F32);
    let mixed = autocast(Some(DType::Bf16), || results(&moe, &x, moe.forward(&x)));
    assert_eq!(mixed[0].dtype(), DType::Bf16);
    assert!(mixed[1..].iter().all(|gradient| gradient.dtype() == DType::F32));
    let exact = results(&moe, &x, moe.forward(&x));
    let all = evaluated(&[mixed, exact].concat());
    let (mixed, exact) = all.split_at(all.len() / 2);
    for (mixed, exact) in mixed.iter().zip(exact) {
        let largest = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let error = mixed.iter().zip(exact).fold(0.0f64, |e, (a, b)| e.max((a - b).abs()));
        assert!(error < 0.03 * largest, "{error:e} of {largest:e}");
    }
    let program = autocast(Some(DType::Bf16), || {
        Function::trace("moe", TensorType::new(DType::F32, [2, 40, 8]), |x| moe.forward(&x))
    });
    let text = program.stablehlo().unwrap();
    assert!(text.contains("xbf16>) -> tensor<1x8x16xbf16>"), "{text}");
}

/// The values and gradients on the devices of a mesh, by the default rules.
fn on_devices(axes: &[(&str, usize)], moe: &MixtureOfExperts, x: &Tensor) -> Vec<Vec<f64>> {
    computed(axes, true, moe, x)
}

/// The values and gradients by the default rules, with the constraints of modules or without them.
fn computed(
    axes: &[(&str, usize)],
    has_constraints: bool,
    moe: &MixtureOfExperts,
    x: &Tensor,
) -> Vec<Vec<f64>> {
    let mesh = Mesh::new(axes.iter().copied()).unwrap();
    let devices = Devices::from(mesh.num_devices());
    let runtime = Runtime::open(Accelerator::Cpu, &devices).unwrap().with_mesh(&mesh).unwrap();
    let parameters = moe.parameters();
    let values: Vec<Tensor> =
        std::iter::once(x.clone()).chain(parameters.iter().map(|(_, w)| w.get())).collect();
    let types: Vec<TensorType> = values.iter().map(|value| value.ty().clone()).collect();
    let batch = vec![Some("batch".to_owned()), Some("length".to_owned()), None];
    let shardings: Vec<Sharding> = std::iter::once(batch)
        .chain(parameters.iter().map(|(_, w)| w.axes().unwrap()))
        .zip(&types)
        .map(|(names, ty)| AxisRules::default().sharding(&names, &ty.shape, &mesh).unwrap())
        .collect();
    let mut function = Function::trace("moe", &types, |arguments| {
        let record = || {
            for ((_, parameter), value) in parameters.iter().zip(&arguments[1..]) {
                parameter.set(value.clone());
            }
            results(moe, &arguments[0], moe.forward(&arguments[0]))
        };
        let rules = AxisRules::default();
        if has_constraints {
            rules.apply(&mesh, record)
        } else {
            rules.apply_without_constraints(&mesh, record)
        }
    });
    for (i, sharding) in shardings.iter().enumerate() {
        function = function.shard_parameter(i, sharding.clone());
        // The results are y, the gradients of the parameters, and that of x.
        let result = if i == 0 { values.len() } else { i };
        function = function.shard_result(result, sharding.clone());
    }
    function = function.shard_result(0, shardings[0].clone());
    let compiled = runtime.compile(&function).unwrap();
    let literals = values.iter().map(|value| value.eval().unwrap());
    let arrays: Vec<_> = literals
        .zip(&shardings)
        .map(|(literal, sharding)| runtime.to_devices(&literal, sharding).unwrap())
        .collect();
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    let has_tensor_parallelism = mesh.size("model").is_some();
    if mesh.num_devices() > 1 && !has_tensor_parallelism {
        // Nothing is sent within the loops.
        let collectives = compiled.executable().hlo().unwrap().collectives();
        assert!(collectives.iter().all(|collective| collective.times == 1), "{collectives:?}");
        let samples = x.ty().size_in_bytes() as u64;
        let has_all = collectives.iter().any(|collective| collective.bytes >= samples);
        assert!(has_constraints || !has_all, "a device has all samples: {collectives:?}");
    }
    for ((_, parameter), value) in parameters.iter().zip(&values[1..]) {
        parameter.set(value.clone());
    }
    let arrays = outputs.arrays.iter().collect::<Vec<_>>();
    runtime.read(&arrays).unwrap().wait().unwrap().iter().map(Literal::to_f64).collect()
}

#[test]
fn eight_devices_do_what_one_does() {
    let moe = MixtureOfExperts::new(8, 16, 8).block_size(4).shared_experts(8, true);
    set_simple_values(&moe);
    let x = simple(&[8, 12, 8], 37, DType::F32);
    let skewed = MixtureOfExperts::new(8, 16, 8).block_size(4).top_k(1);
    set_simple_values(&skewed);
    // One expert has all tokens, so one device has all work.
    let row = Tensor::arange(DType::I32, 8).eq(2.0).to_dtype(DType::F32).eval().unwrap();
    let row: Vec<f32> = row.to_vec::<f32>().unwrap();
    let weight: Vec<f32> = row.iter().flat_map(|&one| [one; 8]).collect();
    skewed.gate.weight.set(Tensor::from_slice(&weight, [8, 8]));
    let positive: Vec<f32> = (0..768).map(|i| (i * 37 % 101) as f32 / 100.0 + 0.1).collect();
    let positive = Tensor::from_slice(&positive, [8, 12, 8]);
    let capacity = moe.clone().capacity_factor(1.0);
    let all: [&[(&str, usize)]; 3] = [
        &[("fsdp", 2), ("expert", 4)],
        &[("expert", 2), ("model", 4)],
        &[("data", 2), ("expert", 2), ("context", 2)],
    ];
    for (moe, x, meshes) in [(&moe, &x, 0..3), (&skewed, &positive, 0..1), (&capacity, &x, 0..1)] {
        let one = on_devices(&[("data", 1)], moe, x);
        for mesh in &all[meshes] {
            assert_all_close(&on_devices(mesh, moe, x), &one, 1e-5);
        }
    }
}

#[test]
fn without_constraints_each_device_computes_its_own_samples() {
    let moe = MixtureOfExperts::new(16, 16, 8).block_size(4);
    set_simple_values(&moe);
    let x = simple(&[8, 96, 16], 37, DType::F32);
    for moe in [&moe, &moe.clone().capacity_factor(1.0)] {
        let one = computed(&[("data", 1)], false, moe, &x);
        assert_all_close(&computed(&[("data", 8)], false, moe, &x), &one, 1e-4);
    }
    // Six samples are not split, rather than refused.
    let x = simple(&[6, 4, 16], 37, DType::F32);
    let mesh = Mesh::new([("data", 8)]).unwrap();
    let rules = AxisRules::default();
    assert!(rules.apply_without_constraints(&mesh, || moe.forward(&x)).fault().is_none());
    assert!(rules.apply(&mesh, || moe.forward(&x)).fault().is_some());
}

#[test]
fn what_experts_cannot_do_is_told() {
    let x = Tensor::zeros(DType::F32, [2, 3, 4]);
    let check = |moe: MixtureOfExperts, expected: &str| {
        let text = fault(&moe.forward(&x));
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("MixtureOfExperts") && text.contains("tests/it/experts.rs"),
            "{text}"
        );
    };
    let moe = || MixtureOfExperts::new(4, 8, 6);
    check(
        MixtureOfExperts::new(5, 8, 6),
        "the input f32[2, 3, 4] is not floating-point [.., tokens, 5]",
    );
    check(moe().top_k(7), "top_k is 7, but a token selects from 6 experts");
    check(moe().top_k(0), "it must be from 1 to 6");
    check(moe().groups(4, 1), "6 experts in 4 groups, and a token uses 1 groups");
    check(
        moe().groups(3, 1).scores_per_group(3),
        "6 experts in 3 groups, and a token uses 1 groups: the groups must be equal, have at least 3 experts",
    );
    check(moe().groups(3, 1).scores_per_group(0), "scores_per_group is 0; it must be at least 1");
    check(moe().groups(3, 1).top_k(3), "top_k is 3, but a token selects from 2 experts");
    check(moe().capacity_factor(0.0), "the capacity factor is 0; it must be above 0");
    check(moe().block_size(0), "the block size is 0");
    let text = fault(&moe().capacity_factor(1.0).forward(x.index(0, 0)));
    assert!(text.contains("the input f32[3, 4] is not [batch, length, 4]"), "{text}");
    let (y, routing) = moe().top_k(0).forward_with_routing(&x);
    assert!(y.fault().is_some() && routing.load_balancing_loss().fault().is_some());
    let mesh = Mesh::new([("expert", 4)]).unwrap();
    let layer = moe();
    set_simple_values(&layer);
    let x = Tensor::zeros(DType::F32, [4, 3, 4]);
    let text = fault(&AxisRules::default().apply(&mesh, || layer.forward(&x)));
    assert!(text.contains("the axis `expert` has size 6, which the mesh axis `expert`"), "{text}");
}
