//! Branches and loops: values, nesting and emitted programs. Derivatives are compared with the same
//! computation without branches and loops, and with central differences.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{
    DType, Function, Literal, Runtime, Scan, Tensor, TensorType, checkpoint, cond, custom_gradient,
    fori_loop, grad, map, random, scan, switch, while_loop,
};

fn f64s(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let value =
        |i: usize| ((i * 7 + seed * 13 + 1) as f64 * 0.618_033_988_749_895).fract() * 1.6 - 0.8;
    Tensor::from_slice(&(0..count).map(value).collect::<Vec<_>>(), shape)
}

fn values(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    let literals = Runtime::global().unwrap().eval_many(tensors);
    literals.unwrap_or_else(|e| panic!("{e}")).iter().map(Literal::to_f64).collect()
}

#[track_caller]
fn close(name: &str, actual: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{name}");
    for (i, (a, b)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(a.len(), b.len(), "{name}: {i}");
        for (j, (a, b)) in a.iter().zip(b).enumerate() {
            let near = (a - b).abs() <= tolerance * (1.0 + b.abs()) || a == b;
            assert!(near, "{name}: value {i}, element {j}: {a}, expected {b}");
        }
    }
}

/// A sum in which every element of every tensor has another weight.
fn weighted(tensors: &[Tensor]) -> Tensor {
    let mut sum = Tensor::scalar(0.0f64);
    for (i, t) in tensors.iter().filter(|t| t.dtype().is_float()).enumerate() {
        let weights =
            (Tensor::arange(DType::F64, t.shape().num_elements()) * 0.37 + 0.5 + i as f64).sin();
        sum = sum + (t.to_dtype(DType::F64) * weights.reshape(t.shape())).sum_all();
    }
    sum
}

type Body = fn(&[Tensor]) -> Vec<Tensor>;

/// Checks that `actual` and `plain` give the same values, first derivatives and second derivatives.
#[track_caller]
fn same(name: &str, shapes: &[&[usize]], actual: Body, plain: Body) {
    let inputs: Vec<Tensor> = shapes.iter().enumerate().map(|(i, s)| f64s(s, i)).collect();
    let all = |f: Body| {
        let parameters: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(i, t)| Tensor::placeholder(format!("x{i}"), t.ty().clone()))
            .collect();
        let results = f(&parameters);
        let wrt: Vec<&Tensor> = parameters.iter().collect();
        let first = grad(&weighted(&results), &wrt);
        let second = grad(&weighted(&first), &wrt);
        let results: Vec<Tensor> = results.into_iter().chain(first).chain(second).collect();
        Function::new(name, parameters, results)
    };
    let runtime = Runtime::global().unwrap();
    let run = |f: Body, inputs: &[Literal]| {
        let compiled = runtime.compile(&all(f)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let arrays: Vec<_> = inputs.iter().map(|l| runtime.to_device(l).unwrap()).collect();
        let outputs =
            compiled.call(arrays.iter().map(fulmen_tensor::Argument::Borrow).collect()).unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().map(Literal::to_f64).collect::<Vec<_>>()
    };
    let literals: Vec<Literal> = inputs.iter().map(|t| t.eval().unwrap()).collect();
    close(name, &run(actual, &literals), &run(plain, &literals), 1e-10);
}

/// Runs `step` over the slices of `xs` without a scan.
fn unrolled(
    init: &[Tensor],
    xs: &[Tensor],
    reverse: bool,
    step: impl Fn(&[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> Vec<Tensor> {
    let length = xs[0].shape()[0];
    let mut carry = init.to_vec();
    let mut all = vec![Vec::new(); length];
    for n in 0..length {
        let i = if reverse { length - 1 - n } else { n };
        let slices: Vec<Tensor> = xs.iter().map(|x| x.narrow(0, i, 1).squeeze(0)).collect();
        let (next, ys) = step(&carry, &slices);
        carry = next;
        all[i] = ys;
    }
    let count = all[0].len();
    let ys = (0..count).map(|y| Tensor::stack(&all.iter().map(|ys| &ys[y]).collect::<Vec<_>>(), 0));
    carry.extend(ys);
    carry
}

fn joined((mut carry, ys): (Vec<Tensor>, Vec<Tensor>)) -> Vec<Tensor> {
    carry.extend(ys);
    carry
}

#[test]
fn a_scan_is_its_steps_one_after_the_other() {
    // A recurrent cell that captures its weights, and a view of them.
    fn cell(w: &Tensor, b: &Tensor, h: &[Tensor], x: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
        let next = (h[0].matmul(&w.transpose(0, 1)) + &x[0] + b).tanh();
        (vec![next.clone()], vec![&next * &x[0], h[0].exp()])
    }
    let shapes: &[&[usize]] = &[&[2, 3], &[5, 2, 3], &[3, 3], &[3]];
    same(
        "cell",
        shapes,
        |x| joined(scan(&[&x[0]], &[&x[1]], |h, s| cell(&x[2], &x[3], &h, &s))),
        |x| unrolled(&x[..1], &x[1..2], false, |h, s| cell(&x[2], &x[3], h, s)),
    );
    same(
        "cell, reversed",
        shapes,
        |x| {
            joined(
                Scan::new()
                    .reverse(true)
                    .run(&[&x[0]], &[&x[1]], |h, s| cell(&x[2], &x[3], &h, &s)),
            )
        },
        |x| unrolled(&x[..1], &x[1..2], true, |h, s| cell(&x[2], &x[3], h, s)),
    );
    same(
        "one step",
        &[&[2, 3], &[1, 2, 3], &[3, 3], &[3]],
        |x| joined(scan(&[&x[0]], &[&x[1]], |h, s| cell(&x[2], &x[3], &h, &s))),
        |x| unrolled(&x[..1], &x[1..2], false, |h, s| cell(&x[2], &x[3], h, s)),
    );
    // Two carries that swap, and an integer that counts.
    fn swap(c: &[Tensor], x: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
        let n = &c[2] + 1.0;
        (vec![&c[1] * &x[0], c[0].sin(), n.clone()], vec![n.to_dtype(DType::F64) * &c[0], n])
    }
    same(
        "swap",
        &[&[3], &[3], &[4, 3]],
        |x| joined(scan(&[&x[0], &x[1], &Tensor::scalar(0i32)], &[&x[2]], |c, s| swap(&c, &s))),
        |x| unrolled(&[x[0].clone(), x[1].clone(), Tensor::scalar(0i32)], &x[2..3], false, swap),
    );
    // The carry starts constant, and gets a gradient only through a captured value.
    same(
        "outside",
        &[&[2], &[4, 2]],
        |x| {
            joined(scan(&[&Tensor::zeros(DType::F64, [2])], &[&x[1]], |c, s| {
                (vec![(&c[0] + &x[0] * &s[0]).cos()], Vec::new())
            }))
        },
        |x| {
            unrolled(&[Tensor::zeros(DType::F64, [2])], &x[1..2], false, |c, s| {
                (vec![(&c[0] + &x[0] * &s[0]).cos()], Vec::new())
            })
        },
    );
}

#[test]
fn scans_branches_and_checkpoints_nest() {
    // A scan in a scan. The inner body uses values of the outer body, and values from outside of
    // both.
    fn inner(w: &Tensor, row: &Tensor, c: &[Tensor], x: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
        ((vec![(&c[0] * w + &x[0] * row).sin()]), vec![(&c[0] * row).sum_all()])
    }
    same(
        "scan in scan",
        &[&[3], &[2, 3], &[4, 3], &[3]],
        |x| {
            joined(scan(&[&x[0]], &[&x[1]], |c, row| {
                let (last, ys) = scan(&[&c[0]], &[&x[2]], |c, s| inner(&x[3], &row[0], &c, &s));
                (last, ys)
            }))
        },
        |x| {
            unrolled(&x[..1], &x[1..2], false, |c, row| {
                let mut all = unrolled(c, &x[2..3], false, |c, s| inner(&x[3], &row[0], c, s));
                let ys = all.split_off(1);
                (all, ys)
            })
        },
    );
    same(
        "cond in scan",
        &[&[3], &[5, 3], &[3]],
        |x| {
            joined(scan(&[&x[0]], &[&x[1]], |c, s| {
                let next = cond(
                    &s[0].sum_all().gt(0.0),
                    &[&c[0]],
                    |c| vec![(&c[0] * &s[0]).cos()],
                    |c| vec![(&c[0] + &x[2]).sin()],
                );
                (next.clone(), next)
            }))
        },
        |x| {
            unrolled(&x[..1], &x[1..2], false, |c, s| {
                let next =
                    s[0].sum_all().gt(0.0).select(&(&c[0] * &s[0]).cos(), &(&c[0] + &x[2]).sin());
                (vec![next.clone()], vec![next])
            })
        },
    );
    same(
        "scan in cond",
        &[&[3], &[5, 3]],
        |x| {
            let body = |c: Tensor, s: Tensor| ((&c * &s + &x[0]).cos(), ());
            vec![cond(
                &x[0].sum_all().lt(9.0),
                &x[1],
                |rows| scan(&x[0], rows, body).0,
                |_| x[0].clone(),
            )]
        },
        |x| {
            unrolled(&x[..1], &x[1..2], false, |c, s| {
                (vec![(&c[0] * &s[0] + &x[0]).cos()], Vec::new())
            })
        },
    );
    same(
        "checkpoint in scan",
        &[&[3], &[4, 3], &[3]],
        |x| {
            joined(scan(&[&x[0]], &[&x[1]], |c, s| {
                let next = checkpoint(|c| vec![((&c[0] * &x[2]).sin() * &s[0]).exp()], &[&c[0]]);
                (next, Vec::new())
            }))
        },
        |x| {
            unrolled(&x[..1], &x[1..2], false, |c, s| {
                (vec![((&c[0] * &x[2]).sin() * &s[0]).exp()], Vec::new())
            })
        },
    );
    same(
        "scan in checkpoint in checkpoint",
        &[&[3], &[4, 3]],
        |x| {
            let block = |(x, rows): (Tensor, Tensor)| {
                let inner = |y: Tensor| scan(y, &rows, |c, s| ((&c * &s).sin() + &x, ())).0;
                checkpoint(inner, x.exp())
            };
            vec![checkpoint(block, (&x[0], &x[1]))]
        },
        |x| {
            unrolled(&[x[0].exp()], &x[1..2], false, |c, s| {
                (vec![(&c[0] * &s[0]).sin() + &x[0]], Vec::new())
            })
        },
    );
}

#[test]
fn gradients_flow_to_whatever_is_held_outside() {
    // The body uses constants, views and a mask that were recorded before it.
    let w = f64s(&[2, 2], 1);
    let x = f64s(&[3, 2], 2);
    let view = w.t();
    let wide = f64s(&[2], 3).broadcast_to([2, 2]);
    let mask = Tensor::from_slice(&[true, false], [2]);
    let body = |c: &Tensor, x: &Tensor| {
        let y = (c.unsqueeze(0).matmul(&view).squeeze(0) + (&wide * x).sum(0)).sin();
        mask.select(&y, &(y.clone() * &w.sum(0)))
    };
    let plain = |x: &[Tensor]| {
        (0..3)
            .fold(Tensor::zeros(DType::F64, [2]), |c, i| body(&c, &x[0].narrow(0, i, 1).squeeze(0)))
    };
    let expected = plain(std::slice::from_ref(&x));
    let zero = Tensor::zeros(DType::F64, [2]);
    let scanned = scan(&zero, &x, |c, x| (body(&c, &x), ())).0;
    let chosen =
        cond(&Tensor::scalar(true), (), |()| plain(std::slice::from_ref(&x)), |()| zero.clone());
    let checkpointed = checkpoint(|x| plain(&x), &[&x]);
    let captured = [&w, &view, &wide, &x];
    let gradients = |y: &Tensor| grad(&weighted(std::slice::from_ref(y)), &captured);
    let expected = values(&gradients(&expected));
    for (name, y) in [("scan", scanned), ("cond", chosen), ("checkpoint", checkpointed)] {
        close(name, &values(&gradients(&y)), &expected, 1e-12);
    }
}

#[test]
fn branches_give_what_the_chosen_one_gives() {
    same(
        "cond",
        &[&[2, 2], &[2]],
        |x| {
            cond(
                &x[0].sum_all().lt(99.0),
                &[&x[0]],
                |o| vec![(&o[0] * &x[1]).sin(), x[1].exp()],
                |o| vec![o[0].clone(), x[1].clone()],
            )
        },
        |x| vec![(&x[0] * &x[1]).sin(), x[1].exp()],
    );
    let powers = |index: i64| {
        let x = f64s(&[3], 2);
        let y = switch(&Tensor::scalar(index), &x, |x| x.ones_like(), &[&|x| x, &|x| &x * &x]);
        let gradient = grad(&y.sum_all(), &[&x]);
        values(&[y, gradient[0].clone()])
    };
    let x = values(&[f64s(&[3], 2)]).remove(0);
    let mapped = |f: fn(f64) -> f64| x.iter().map(|&x| f(x)).collect::<Vec<_>>();
    for (index, value, slope) in [
        (-5, mapped(|_| 1.0), mapped(|_| 0.0)),
        (0, mapped(|_| 1.0), mapped(|_| 0.0)),
        (1, mapped(|x| x), mapped(|_| 1.0)),
        (2, mapped(|x| x * x), mapped(|x| 2.0 * x)),
        (i64::MAX, mapped(|x| x * x), mapped(|x| 2.0 * x)),
    ] {
        close(&format!("switch {index}"), &powers(index), &[value, slope], 1e-12);
    }
}

#[test]
fn loops_run_as_often_as_they_should() {
    let counted = |lower: i64, upper: i64| {
        let sum = &fori_loop(lower, upper, &[&Tensor::scalar(0i32)], |i, c| vec![&c[0] + i])[0];
        let l = Tensor::scalar(lower);
        let u = Tensor::scalar(upper as i32);
        let device = &fori_loop(&l, &u, &[&Tensor::scalar(0i64)], |i, c| vec![&c[0] + i])[0];
        let mixed = &fori_loop(lower, &u, &[&Tensor::scalar(0i32)], |i, c| vec![&c[0] + i])[0];
        values(&[sum.clone(), device.clone(), mixed.clone()])
    };
    for (lower, upper) in [(0, 5), (-3, 4), (2, 2), (4, 1), (7, 8)] {
        let expected = (lower..upper).sum::<i64>() as f64;
        assert_eq!(counted(lower, upper), [[expected], [expected], [expected]], "{lower}..{upper}");
    }
    let halvings = |x: f64| {
        let bound = Tensor::scalar(1.0f64);
        let last = while_loop(
            &[&Tensor::scalar(x), &Tensor::scalar(0i32)],
            |c| c[0].gt(&bound),
            |c| vec![&c[0] / 2.0, &c[1] + 1.0],
        );
        values(&last)
    };
    assert_eq!(halvings(40.0), [[0.625], [6.0]]);
    assert_eq!(halvings(0.5), [[0.5], [0.0]], "not once");
    // A while loop whose body is a scan that uses the carry of the loop.
    let x = f64s(&[3], 1);
    let outer = while_loop(
        &[&Tensor::scalar(1.0f64)],
        |c| c[0].lt(10.0),
        |c| scan(&[&Tensor::scalar(0.0f64)], &x, |sum, x| (vec![&sum[0] + x.exp() * &c[0]], ())).0,
    );
    let factor: f64 = values(&[x])[0].iter().map(|x| x.exp()).sum();
    let mut expected = 1.0;
    while expected < 10.0 {
        expected *= factor;
    }
    close("while around scan", &values(&outer), &[vec![expected]], 1e-12);
}

#[test]
fn no_steps_and_no_elements_are_fine() {
    let x = Tensor::zeros(DType::F32, [0, 2]);
    let init = Tensor::ones(DType::F32, [2]);
    let (carry, ys) = scan(&[&init], &[&x], |c, x| (vec![&c[0] * &x[0]], vec![c[0].sum_all()]));
    assert_eq!(ys[0].ty().to_string(), "f32[0]");
    let gradients = grad(&(carry[0].sum_all() + ys[0].sum_all()), &[&init, &x]);
    assert_eq!(
        values(&[carry[0].clone(), gradients[0].clone(), gradients[1].clone()]),
        [vec![1.0; 2], vec![1.0; 2], Vec::new()]
    );
    let x = Tensor::zeros(DType::F32, [3, 0]);
    let init = Tensor::zeros(DType::F32, [0]);
    let (carry, ys) = scan(&[&init], &[&x], |c, x| (vec![&c[0] * &x[0]], vec![x[0].exp()]));
    let gradients = grad(&(carry[0].sum_all() + ys[0].sum_all()), &[&init, &x]);
    assert_eq!(
        values(&[carry[0].clone(), ys[0].clone(), gradients[1].clone()]),
        [vec![0.0; 0], Vec::new(), Vec::new()]
    );
    let none: (Vec<Tensor>, Vec<Tensor>) =
        Scan::new()
            .length(3)
            .run(&[] as &[Tensor], &[] as &[Tensor], |_, _| (Vec::new(), Vec::new()));
    assert!(none.0.is_empty() && none.1.is_empty());
    let ((), ()) = Scan::new().length(3).run((), (), |(), ()| ((), ()));
    let scalar = Tensor::scalar(true);
    cond(&scalar, (), |()| (), |()| ());
    checkpoint(|()| (), ());
    assert!(
        cond(&scalar, &[] as &[Tensor], |_| Vec::<Tensor>::new(), |_| Vec::new()).is_empty()
            && Tensor::optimization_barrier(&[] as &[Tensor]).is_empty()
    );
    let stacked = map(
        |x| vec![x[0].sum_all(), &x[1] * 2.0],
        &[&Tensor::zeros(DType::F32, [0, 3]), &Tensor::zeros(DType::F32, [0])],
    );
    assert_eq!(values(&stacked), [vec![0.0; 0], Vec::new()]);
}

#[test]
fn a_custom_gradient_replaces_the_derivative() {
    let x = f64s(&[3], 3);
    let w = f64s(&[3], 4);
    let y = custom_gradient(
        &[&x, &w],
        |x| vec![(&x[0] * &x[1]).sin(), x[0].exp()],
        |inputs, outputs, cotangents| {
            vec![&cotangents[0] * 10.0 + &cotangents[1] * &outputs[1], &inputs[0] * 100.0]
        },
    );
    let gradients = grad(&(y[0].sum_all() + y[1].sum_all()), &[&x, &w]);
    let expected = [Tensor::full(DType::F64, [3], 10.0) + x.exp(), &x * 100.0];
    close("custom", &values(&gradients), &values(&expected), 1e-12);
    // In the body of a loop, where only one result is used.
    let (sum, ()) = scan(Tensor::scalar(0.0f64), &x, |sum, x| {
        let (floor, _) =
            custom_gradient(x, |x| (x.floor(), x), |_, _, (of_floor, of_x)| of_floor * 3.0 + of_x);
        (sum + floor, ())
    });
    assert_eq!(values(&grad(&sum, &[&x])), [[3.0, 3.0, 3.0]]);
}

#[test]
fn derivatives_agree_with_central_differences() {
    let f = |x: &[Tensor]| {
        let (carry, ys) = scan(&[&x[0]], &[&x[1]], |c, s| {
            let next = checkpoint(|c| vec![(c[0].matmul(&x[2])).tanh() * &s[0]], &[&c[0]]);
            let next = cond(
                &s[0].sum_all().gt(0.1),
                &[&next[0]],
                |n| vec![n[0].exp()],
                |n| vec![&n[0] * &x[3]],
            );
            (next.clone(), vec![next[0].sum(0)])
        });
        weighted(&[carry[0].clone(), ys[0].clone()])
    };
    let shapes: [&[usize]; 4] = [&[2, 3], &[3, 2, 3], &[3, 3], &[3]];
    let types: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(DType::F64, *s)).collect();
    let runtime = Runtime::global().unwrap();
    let value = runtime.compile(&Function::trace("f", &types, |x| f(&x))).unwrap();
    let slopes = Function::trace("df", &types, |x| grad(&f(&x), &x));
    let slopes = runtime.compile(&slopes).unwrap();
    let run = |program: &fulmen_tensor::Compiled, point: &[Vec<f64>]| {
        let arrays: Vec<_> = point
            .iter()
            .zip(shapes)
            .map(|(v, s)| runtime.to_device(&Literal::from_slice(v, s).unwrap()).unwrap())
            .collect();
        let outputs =
            program.call(arrays.iter().map(fulmen_tensor::Argument::Borrow).collect()).unwrap();
        let read =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        read.iter().map(Literal::to_f64).collect::<Vec<_>>()
    };
    let point = values(&shapes.iter().enumerate().map(|(i, s)| f64s(s, i)).collect::<Vec<_>>());
    let gradients = run(&slopes, &point);
    let h = 1e-6;
    for input in 0..point.len() {
        for element in 0..point[input].len() {
            let shifted = |delta: f64| {
                let mut moved = point.clone();
                moved[input][element] += delta;
                run(&value, &moved)[0][0]
            };
            let difference = (shifted(h) - shifted(-h)) / (2.0 * h);
            let gradient = gradients[input][element];
            assert!(
                (gradient - difference).abs() < 1e-7 * (1.0 + difference.abs()),
                "{input} {element}: {gradient} {difference}"
            );
        }
    }
}

#[test]
fn random_numbers_in_a_body_are_those_outside() {
    let key = random::key(7);
    let ys = map(
        |i| random::uniform(&random::fold_in_tensor(&key, &i), DType::F32, [4], 0.0, 1.0),
        Tensor::arange(DType::U32, 3),
    );
    let outside: Vec<Tensor> = (0..3u32)
        .map(|i| random::uniform(&random::fold_in(&key, i), DType::F32, [4], 0.0, 1.0))
        .collect();
    let stacked = Tensor::stack(&outside, 0);
    assert_eq!(values(&[ys]), values(&[stacked]));
}

#[test]
fn a_gradient_runs_the_forward_loop_once() {
    let ty = [TensorType::new(DType::F32, [4]), TensorType::new(DType::F32, [6, 4])];
    let function = Function::trace("once", ty, |[x, w]| {
        let (carry, ys) = scan(&[&x], &[&w], |c, s| {
            let next = (&c[0] * &s[0]).sin();
            (vec![next.clone()], vec![next])
        });
        let loss = carry[0].sum_all() + ys[0].sum_all();
        let mut results = grad(&loss, &[&x, &w]);
        results.extend(grad(&loss, &[&x, &w]));
        results.push(loss);
        results
    });
    let text = function.stablehlo().unwrap();
    assert_eq!(text.matches("stablehlo.while").count(), 2, "{text}");
}

#[test]
fn a_long_chain_of_bodies_needs_no_deep_stack() {
    let x = Tensor::scalar(1.0f32);
    let mut y = x.clone();
    for _ in 0..3000 {
        let outer = y.clone();
        y = checkpoint(|y| vec![&y[0] * 1.0 + &outer * 0.0], &[&y]).remove(0);
    }
    let gradient = grad(&y, &[&x]).remove(0);
    let function = Function::new("deep", Vec::new(), vec![gradient]);
    assert!(function.stablehlo().unwrap().contains("optimization_barrier"));
}
