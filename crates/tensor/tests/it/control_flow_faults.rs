//! Faults of branches and loops and their messages, and control flow on several devices.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Runtime, Scan, Sharding, Tensor,
    TensorType, Variable, autocast, checkpoint, cond, custom_gradient, fori_loop, grad, map,
    random, scan, switch, while_loop,
};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

/// Checks the number of tensors, the message of each fault, and that its location is in this file.
#[track_caller]
fn check(tensors: &[Tensor], count: usize, expected: &str) {
    assert_eq!(tensors.len(), count);
    for tensor in tensors {
        let fault = tensor.fault().expect("the operation must be refused");
        assert_eq!(format!("{}: {}", fault.operation(), fault.message()), expected);
        assert!(fault.location().file().ends_with("control_flow_faults.rs"), "{fault}");
    }
}

type Backward = fn(&Vec<Tensor>, &Vec<Tensor>, &Vec<Tensor>) -> Vec<Tensor>;

fn joined((mut carry, ys): (Vec<Tensor>, Vec<Tensor>)) -> Vec<Tensor> {
    carry.extend(ys);
    carry
}

#[test]
fn branches_that_do_not_agree_are_refused() {
    let yes = Tensor::scalar(true);
    let x = zeros(&[2]);
    check(
        &cond(
            &yes,
            &[&x],
            |x| vec![x[0].clone(), x[0].clone()],
            |x| vec![x[0].clone(), x[0].sum_all()],
        ),
        2,
        "cond: result 1 is f32[2] in branch 0 and f32[] in branch 1; all branches must return the same types",
    );
    check(
        &cond(&yes, &[&x], |x| vec![x[0].clone()], |_| Vec::new()),
        1,
        "cond: branch 0 returns 1 result and branch 1 returns 0; all branches must return the same number of \
         results, of the same types",
    );
    check(
        &cond(&x, &[&x], |x| vec![x[0].clone(); 3], |x| vec![x[0].clone(); 3]),
        3,
        "cond: the predicate must be a bool scalar, not f32[2]; make one with lt() or all()",
    );
    check(
        &switch(&Tensor::scalar(1.0f32), &[&x], |x| x, &[&|x| x]),
        1,
        "switch: the index must be an integer scalar, not f32[]",
    );
    check(
        &switch(&Tensor::scalar(1), &[&x], |x| x, &[&|_| Vec::new()]),
        1,
        "switch: branch 0 returns 1 result and branch 1 returns 0; all branches must return the same number of \
         results, of the same types",
    );
}

#[test]
fn a_carry_that_changes_is_refused() {
    let x = zeros(&[2]);
    let xs = zeros(&[5, 2]);
    check(
        &joined(scan(&[&x], &[&xs], |c, x| (vec![(&c[0] * &x[0]).sum_all()], vec![x[0].clone()]))),
        2,
        "scan: carry 0 enters the body as f32[2] and leaves it as f32[]; its type must stay the same",
    );
    check(
        &while_loop(&[&x], |c| c[0].sum_all().lt(1.0), |_| Vec::new()),
        1,
        "while_loop: the carry enters the body as 1 tensor and leaves it as 0; the number must stay the same",
    );
    check(
        &while_loop(&[&x], |c| c[0].lt(1.0), |c| c.to_vec()),
        1,
        "while_loop: the condition must be a bool scalar, not bool[2]; reduce it with all() or any()",
    );
    check(
        &fori_loop(0, 3, &[&x], |_, c| vec![c[0].to_dtype(DType::F64)]),
        1,
        "scan: carry 0 enters the body as f32[2] and leaves it as f64[2]; its type must stay the same",
    );
    // Under autocast a product has a narrow dtype, so a carry that is a product changes its type.
    let w = zeros(&[2, 2]);
    let fault =
        autocast(Some(DType::Bf16), || scan(&[&w], &xs, |c, _| (vec![c[0].matmul(&w)], ())));
    check(
        &fault.0,
        1,
        "scan: carry 0 enters the body as f32[2, 2] and leaves it as bf16[2, 2]; its type must stay the same",
    );
}

#[test]
fn xs_that_do_not_fit_are_refused() {
    let body = |_: Vec<Tensor>, x: Vec<Tensor>| (Vec::new(), x);
    check(
        &joined(scan(&[] as &[Tensor], &[&zeros(&[5, 2]), &zeros(&[4, 2])], body)),
        2,
        "scan: x 1, f32[4, 2], has 4 slices along its first axis, and x 0 has 5; the numbers must be equal",
    );
    check(
        &joined(Scan::new().length(3).run(&[] as &[Tensor], &[&zeros(&[5])], body)),
        1,
        "scan: x 0, f32[5], has 5 slices along its first axis, and the length is 3; the numbers must be equal",
    );
    check(
        &joined(scan(&[] as &[Tensor], &[&zeros(&[])], body)),
        1,
        "scan: x 0 is a scalar, f32[]; a scan iterates over the first axis of each x",
    );
    check(
        &joined(scan(&[&zeros(&[])], &[] as &[Tensor], |c, _| (c, Vec::new()))),
        1,
        "scan: there are no xs; set the number of steps with Scan::new().length(n)",
    );
    check(
        &joined(
            Scan::new()
                .length(usize::MAX)
                .run(&[&zeros(&[])], &[] as &[Tensor], |c, _| (c, Vec::new())),
        ),
        1,
        "scan: 18446744073709551615 steps are more than an i32 can count",
    );
    check(&map(|()| vec![zeros(&[])], ()), 1, "map: there are no xs; pass at least one tensor");
    check(
        &fori_loop(0, i64::MAX, &[&zeros(&[])], |_, c| c.to_vec()),
        1,
        "fori_loop: 0 to 9223372036854775807: the bounds and the number of steps must fit an i32",
    );
    check(
        &fori_loop(0, zeros(&[]), &[&zeros(&[])], |_, c| c.to_vec()),
        1,
        "fori_loop: a bound must be an integer scalar, not f32[]",
    );
}

#[test]
fn a_mistake_in_a_body_names_its_own_line() {
    let x = zeros(&[2]);
    let xs = zeros(&[5, 2]);
    let line = line!() + 1;
    let (carry, ys) = scan(&[&x], &[&xs], |c, x| (vec![&c[0] + zeros(&[3])], vec![x[0].clone()]));
    let fault = carry[0].fault().unwrap();
    assert_eq!((fault.operation(), fault.location().line()), ("add", line), "{fault}");
    assert_eq!(ys[0].fault().unwrap().to_string(), fault.to_string());
    // A poisoned operand poisons every result.
    let bad = x.matmul(&zeros(&[9, 9]));
    let all = [
        cond(&Tensor::scalar(true), &[&bad], |x| vec![x[0].exp(); 2], |x| vec![x[0].exp(); 2]),
        joined(scan(&[&bad], &[&xs], |c, x| (c.to_vec(), vec![x[0].clone()]))),
        while_loop(&[&bad, &x], |c| c[0].sum_all().lt(1.0), |c| c.to_vec()),
        checkpoint(|x| vec![x[0].exp(); 2], &[&bad]),
        custom_gradient(&[&bad], |x| vec![x[0].exp(); 2], |_, _, c| c.to_vec()),
        Tensor::optimization_barrier(&[&x, &bad]),
        switch(&Tensor::scalar(0), &[&bad], |x| vec![x[0].exp(); 2], &[&|x| vec![x[0].exp(); 2]]),
    ];
    for tensors in all {
        assert_eq!(tensors.len(), 2);
        assert!(tensors.iter().all(|t| t.fault().unwrap().operation() == "matmul"));
    }
}

#[test]
fn derivatives_that_there_are_none_of_are_refused() {
    let x = Tensor::scalar(1.0f32);
    let y = while_loop(&[&x], |c| c[0].lt(9.0), |c| vec![&c[0] * 2.0]);
    let line = line!() - 1;
    let gradients = grad(&y[0], &[&x]);
    let fault = gradients[0].fault().unwrap();
    assert!(fault.message().contains("use scan(), or fori_loop()"), "{fault}");
    assert_eq!(fault.location().line(), line);
    // No gradient is taken through the loop here, so nothing is poisoned.
    let (sum, ()) = scan(&[&x], zeros(&[3]), |c, _| {
        let n = while_loop(Tensor::scalar(0i32), |n| n.lt(2.0), |n| n + 1.0);
        (vec![&c[0] * n.to_dtype(DType::F32)], ())
    });
    assert_eq!(grad(&sum[0], &[&x])[0].eval().unwrap().to_f64(), [8.0]);
    // In the body of a scan, the derivative of the loop is needed.
    let (sum, ()) =
        scan(&[&x], zeros(&[3]), |c, _| (while_loop(&[&c[0]], |c| c[0].lt(2.0), |c| c), ()));
    assert_eq!(grad(&sum[0], &[&x])[0].fault().unwrap().operation(), "while_loop");

    let wrong = |backward: Backward| {
        let y = custom_gradient(&[&x], |x| vec![x[0].exp()], backward);
        grad(&y[0], &[&x])
    };
    check(
        &wrong(|_, _, _| Vec::new()),
        1,
        "custom_gradient: the backward function returns 0 cotangents for 1 input; it must return one for each input",
    );
    check(
        &wrong(|_, _, _| vec![zeros(&[2])]),
        1,
        "custom_gradient: the backward function returns f32[2] for input 0, which is f32[]; a cotangent must have the \
         type of its input",
    );
    let w = Tensor::scalar(2.0f32);
    let y = custom_gradient(&[&x], |x| vec![&x[0] * &w], |_, _, c| c.to_vec());
    check(
        &grad(&y[0], &[&w]),
        1,
        "custom_gradient: the forward function uses a tensor from outside, f32[], and its gradient is needed, which \
         the backward function does not return; make the tensor one of the inputs",
    );
}

#[test]
fn a_variable_that_a_body_sets_holds_nothing_outside() {
    let last = Variable::new(zeros(&[2]));
    let line = line!() + 2;
    let ((), _) = scan((), zeros(&[3, 2]), |(), x| {
        last.set(&x * 2.0);
        ((), x)
    });
    let error = last.get().eval().unwrap_err().to_string();
    let expected = "scan: the slice of x 0 has a value only within the body of scan; return from the body what you use \
                    after it. (A Variable that is set within a body holds such a value.)";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("control_flow_faults.rs"), "{error} {line}");
    // The body of a checkpoint has ordinary values.
    let mean = Variable::new(zeros(&[2]));
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    let y = checkpoint(
        |x| {
            let twice = &x[0] * 2.0;
            mean.set(twice.clone());
            vec![twice.exp()]
        },
        &[&x],
    );
    assert_eq!(mean.get().eval().unwrap().to_f64(), [2.0, 4.0]);
    let text =
        Function::new("both", Vec::new(), vec![y[0].clone(), mean.get()]).stablehlo().unwrap();
    assert_eq!(text.matches("stablehlo.multiply").count(), 1, "{text}");
}

#[test]
fn eight_devices_give_what_one_gives() {
    let split = |axis: usize| {
        Sharding::new((0..=axis).map(|a| (a == axis).then_some("data")).collect::<Vec<_>>())
    };
    let shapes: [&[usize]; 4] = [&[8, 16], &[5, 8, 16], &[16, 16], &[16]];
    let types: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(DType::F32, *s)).collect();
    let step = |x: &[Tensor]| {
        let key = random::key(3);
        let numbers = Tensor::arange(DType::U32, 5);
        let (carry, ys) = scan(&[&x[0]], &[&x[1], &numbers], |c, s| {
            let noise = random::uniform(
                &random::fold_in_tensor(&key, &s[1]),
                DType::F32,
                [8, 16],
                0.5,
                1.5,
            );
            let next = checkpoint(|c| vec![(c[0].matmul(&x[2]) + &s[0]).tanh() * &noise], &[&c[0]])
                .remove(0);
            let next = next.with_sharding(&Sharding::new([Some("data")]));
            let next = cond(
                &s[0].sum_all().gt(0.0),
                &[&next],
                |n| vec![&n[0] * &x[3]],
                |n| vec![n[0].sin()],
            )
            .remove(0);
            (vec![next.clone()], vec![next.mean(0)])
        });
        let doubled = while_loop(
            &[&carry[0].detach()],
            |c| c[0].max([0, 1]).lt(3.0),
            |c| vec![&c[0] * 2.0 + 0.1],
        );
        let loss = (&carry[0] * &carry[0]).sum_all() + ys[0].sum_all();
        let mut results = grad(&loss, x);
        results.extend([loss, doubled[0].clone(), ys[0].clone()]);
        results
    };
    let run = |devices: usize| {
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap();
        let shardings = [split(0), split(1), split(1), Sharding::replicated()];
        let mut function = Function::trace("flow", &types, |x| step(&x));
        for (i, sharding) in shardings.iter().enumerate() {
            function = function.shard_parameter(i, sharding.clone());
        }
        let compiled = runtime.compile(&function.shard_result(0, split(0))).unwrap();
        let arrays: Vec<_> = (shapes.iter().zip(&shardings).enumerate())
            .map(|(n, (shape, sharding))| {
                let count: usize = shape.iter().product();
                let value = |i: usize| ((i * 7 + n * 13) as f32 * 0.618_034).fract() - 0.45;
                let literal =
                    Literal::from_slice(&(0..count).map(value).collect::<Vec<_>>(), *shape)
                        .unwrap();
                runtime.to_devices(&literal, sharding).unwrap()
            })
            .collect();
        let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().map(Literal::to_f64).collect::<Vec<_>>()
    };
    for (i, (one, eight)) in run(1).iter().zip(run(8)).enumerate() {
        let near = one.iter().zip(&eight).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + a.abs()));
        assert!(near && one.len() == eight.len(), "result {i}: {one:?} {eight:?}");
    }
    // A sharding within a body names an axis that the mesh lacks.
    let function = Function::trace("flow", &types[1], |x| {
        map(|x| x.with_sharding(&Sharding::new([Some("model")])), x)
    });
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(8)).unwrap();
    let error = runtime.compile(&function).err().unwrap().to_string();
    assert!(error.contains("`model`") && error.contains("control_flow_faults.rs"), "{error}");
}
