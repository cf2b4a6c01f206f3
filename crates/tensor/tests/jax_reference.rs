//! Values and gradients against reference files that `reference/generate.py` made with JAX. The files say with which
//! versions.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::collections::BTreeMap;

use fulmen_tensor::Argument;
use fulmen_tensor::{Convolution, DType, Function, Literal, Pooling, Runtime, Tensor, TensorType, grad, random};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    op: String,
    name: String,
    attrs: Value,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    cotangent: Option<Array>,
    gradients: Vec<Option<Array>>,
}

#[derive(Deserialize)]
struct Array {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<Value>,
}

impl Array {
    fn ty(&self) -> TensorType {
        let dtype = DType::all().find(|d| d.name() == self.dtype).unwrap_or_else(|| panic!("dtype {}", self.dtype));
        TensorType::new(dtype, self.shape.as_slice())
    }
    fn values(&self) -> Vec<f64> {
        let number = |value: &Value| match value {
            Value::String(s) => s.parse::<f64>().unwrap(),
            Value::Bool(b) => f64::from(u8::from(*b)),
            other => other.as_f64().unwrap(),
        };
        self.data.iter().map(number).collect()
    }
    fn literal(&self) -> Literal {
        let (ty, values) = (self.ty(), self.values());
        let f32s: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        match ty.dtype {
            DType::F32 => Literal::from_slice(&f32s, ty.shape),
            DType::I32 => Literal::from_slice(&values.iter().map(|&v| v as i32).collect::<Vec<_>>(), ty.shape),
            DType::U32 => Literal::from_slice(&values.iter().map(|&v| v as u32).collect::<Vec<_>>(), ty.shape),
            DType::Bool => Literal::from_slice(&values.iter().map(|&v| v != 0.0).collect::<Vec<_>>(), ty.shape),
            DType::Bf16 => {
                Literal::from_slice(&f32s.iter().map(|&v| half::bf16::from_f32(v)).collect::<Vec<_>>(), ty.shape)
            }
            DType::F16 => {
                Literal::from_slice(&f32s.iter().map(|&v| half::f16::from_f32(v)).collect::<Vec<_>>(), ty.shape)
            }
            DType::U8 => Literal::from_slice(&values.iter().map(|&v| v as u8).collect::<Vec<_>>(), ty.shape),
            other => panic!("no case has inputs of {other}"),
        }
        .unwrap()
    }
}

/// The attributes of a case.
struct Attrs<'a>(&'a Value);

impl Attrs<'_> {
    fn list<T>(&self, name: &str, item: impl Fn(&Value) -> T) -> Vec<T> {
        self.0[name].as_array().unwrap_or_else(|| panic!("attribute {name}")).iter().map(item).collect()
    }
    fn usizes(&self, name: &str) -> Vec<usize> {
        self.list(name, |v| v.as_u64().unwrap() as usize)
    }
    fn axes(&self, name: &str) -> Vec<isize> {
        self.list(name, |v| v.as_i64().unwrap() as isize)
    }
    fn i64s(&self, name: &str) -> Vec<i64> {
        self.list(name, |v| v.as_i64().unwrap())
    }
    fn axis(&self) -> isize {
        self.0["axis"].as_i64().unwrap() as isize
    }
    fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap()
    }
    fn keepdims(&self) -> bool {
        self.0["keepdims"].as_bool().unwrap()
    }
    fn dtype(&self, name: &str) -> DType {
        DType::all().find(|d| d.name() == self.0[name].as_str().unwrap()).unwrap()
    }
    fn pooling(&self) -> Pooling {
        Pooling::new(self.usizes("window")).stride(self.usizes("stride")).padding(self.usizes("padding"))
    }
}

/// Records the operation of a case.
fn record(case: &Case, x: &[Tensor]) -> Tensor {
    let a = Attrs(&case.attrs);
    match case.op.as_str() {
        "add" => &x[0] + &x[1],
        "subtract" => &x[0] - &x[1],
        "multiply" => &x[0] * &x[1],
        "divide" => &x[0] / &x[1],
        "maximum" => x[0].maximum(&x[1]),
        "minimum" => x[0].minimum(&x[1]),
        "power" => x[0].pow(&x[1]),
        "remainder" => x[0].remainder(&x[1]),
        "negate" => -&x[0],
        "abs" => x[0].abs(),
        "sign" => x[0].sign(),
        "exp" => x[0].exp(),
        "expm1" => x[0].expm1(),
        "log" => x[0].log(),
        "log1p" => x[0].log1p(),
        "sqrt" => x[0].sqrt(),
        "rsqrt" => x[0].rsqrt(),
        "tanh" => x[0].tanh(),
        "logistic" => x[0].sigmoid(),
        "floor" => x[0].floor(),
        "ceil" => x[0].ceil(),
        "sin" => x[0].sin(),
        "cos" => x[0].cos(),
        "erf" => x[0].erf(),
        "erf_inv" => x[0].erf_inv(),
        "compare" => match case.attrs["direction"].as_str().unwrap() {
            "EQ" => x[0].eq(&x[1]),
            "NE" => x[0].ne(&x[1]),
            "LT" => x[0].lt(&x[1]),
            "LE" => x[0].le(&x[1]),
            "GT" => x[0].gt(&x[1]),
            _ => x[0].ge(&x[1]),
        },
        "select" => x[0].select(&x[1], &x[2]),
        "sum" => x[0].sum(&a.axes("axes"), a.keepdims()),
        "max" => x[0].max(&a.axes("axes"), a.keepdims()),
        "min" => x[0].min(&a.axes("axes"), a.keepdims()),
        "mean" => x[0].mean(&a.axes("axes"), a.keepdims()),
        "var" => x[0].var(&a.axes("axes"), a.keepdims()),
        "argmax" => x[0].argmax(a.axis(), a.keepdims()),
        "argmin" => x[0].argmin(a.axis(), a.keepdims()),
        "reshape" => x[0].reshape(a.usizes("shape")),
        "transpose" => x[0].permute(&a.axes("axes")),
        "broadcast_to" => x[0].broadcast_to(a.usizes("shape")),
        "concatenate" => Tensor::concatenate(&x.iter().collect::<Vec<_>>(), a.axis()),
        "slice" => x[0].slice(&a.usizes("start"), &a.usizes("limit"), &a.usizes("strides")),
        "pad" => x[0].pad(&x[1], &a.i64s("low"), &a.i64s("high"), &a.usizes("interior")),
        "reverse" => x[0].flip(&a.axes("axes")),
        "convert" => x[0].to_dtype(a.dtype("to")),
        "convert_through" => x[0].to_dtype(a.dtype("through")).to_dtype(x[0].dtype()),
        "matmul" => x[0].matmul(&x[1]),
        "take" => x[0].take(a.axis(), &x[1]),
        "index_add" => x[0].index_add(a.axis(), &x[1], &x[2]),
        "tril" => x[0].tril(a.number("diagonal") as i64),
        "triu" => x[0].triu(a.number("diagonal") as i64),
        "dot_general" => {
            let pair = |name: &str| -> [Vec<usize>; 2] {
                [0, 1].map(|i| {
                    case.attrs[name][i].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
                })
            };
            let ([lb, rb], [lc, rc]) = (pair("batch"), pair("contracting"));
            x[0].dot_general(&x[1], (&lb, &rb), (&lc, &rc))
        }
        "conv1d" | "conv2d" | "conv3d" => {
            let padding = a.list("padding", |p| (p[0].as_i64().unwrap(), p[1].as_i64().unwrap()));
            let how = Convolution::new(padding.len())
                .stride(a.usizes("stride"))
                .padding(padding)
                .dilation(a.usizes("dilation"))
                .groups(a.number("groups") as usize);
            x[0].convolution(&x[1], &how)
        }
        "max_pool" => x[0].max_pool(&a.pooling()),
        "avg_pool" => x[0].avg_pool(&a.pooling()),
        "softmax" => x[0].softmax(a.axis()),
        "log_softmax" => x[0].log_softmax(a.axis()),
        "logsumexp" => x[0].logsumexp(a.axis(), a.keepdims()),
        "one_hot" => x[0].one_hot(a.number("classes") as usize).to_dtype(DType::F32),
        "cross_entropy" => {
            let chosen = x[1].one_hot(x[0].size(-1)).to_dtype(DType::F32);
            let losses = -(x[0].log_softmax(-1) * chosen).sum(&[-1], false);
            match case.attrs["reduction"].as_str().unwrap() {
                "mean" => losses.mean_all(),
                "sum" => losses.sum_all(),
                _ => losses,
            }
        }
        "fold_in" => random::fold_in(&x[0], a.number("data") as u32),
        "split" => {
            let keys: Vec<Tensor> = (0..a.number("n") as u32).map(|i| random::fold_in(&x[0], i)).collect();
            Tensor::stack(&keys.iter().collect::<Vec<_>>(), 0)
        }
        "bits" => random::bits(&x[0], a.usizes("shape")),
        "uniform" => random::uniform(&x[0], DType::F32, a.usizes("shape"), a.number("minval"), a.number("maxval")),
        "normal" => random::normal(&x[0], DType::F32, a.usizes("shape")),
        "bernoulli" => random::bernoulli(&x[0], a.number("p"), a.usizes("shape")),
        other => panic!("the reference has an operation that this test does not know: {other}"),
    }
}

#[track_caller]
fn compare(what: &str, ours: &Literal, expected: &Array) {
    assert_eq!(ours.ty(), &expected.ty(), "{what}");
    let (ours, expected) = (ours.to_f64(), expected.values());
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in ours.iter().zip(&expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        let close = (a - b).abs() <= 1e-5 * b.abs() + 1e-6 * largest;
        assert!(same || close, "{what}: element {i} is {a}, JAX has {b}");
    }
}

/// Runs all cases of a file, those of one operation as one program. `unknown` lists operations and cases that the
/// reference has and this crate does not.
fn check(text: &str, unknown: &[&str]) {
    let file: File = serde_json::from_str(text).unwrap();
    let mut by_op: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in file.cases.iter().filter(|c| !unknown.contains(&c.op.as_str()) && !unknown.contains(&c.name.as_str())) {
        by_op.entry(&case.op).or_default().push(case);
    }
    assert!(!by_op.is_empty());
    let runtime = Runtime::global().unwrap();
    for (op, cases) in by_op {
        let types: Vec<TensorType> = cases.iter().flat_map(|c| c.inputs.iter().map(Array::ty)).collect();
        let function = Function::trace(op, &types, |parameters| {
            let mut rest = parameters;
            let mut results = vec![];
            for case in &cases {
                let (x, later) = rest.split_at(case.inputs.len());
                rest = later;
                let y = record(case, x);
                results.push(y.clone());
                if let Some(cotangent) = &case.cotangent {
                    let loss = (y * cotangent.literal().to_tensor()).sum_all();
                    let wrt: Vec<&Tensor> =
                        x.iter().zip(&case.gradients).filter(|(_, g)| g.is_some()).map(|(x, _)| x).collect();
                    results.extend(grad(&loss, &wrt));
                }
            }
            results
        });
        let compiled = runtime.compile(&function).unwrap_or_else(|e| panic!("{op}: {e}"));
        let inputs: Vec<_> =
            cases.iter().flat_map(|c| &c.inputs).map(|a| runtime.to_device(&a.literal()).unwrap()).collect();
        let outputs = compiled.call(inputs.iter().map(Argument::Borrow).collect()).unwrap();
        let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        let mut values = values.iter();
        for case in cases {
            let [expected] = case.outputs.as_slice() else { panic!("{}: one output", case.name) };
            compare(&case.name, values.next().unwrap(), expected);
            if case.cotangent.is_some() {
                for (i, gradient) in case.gradients.iter().enumerate() {
                    if let Some(expected) = gradient {
                        compare(&format!("{}, gradient {i}", case.name), values.next().unwrap(), expected);
                    }
                }
            }
        }
    }
}

#[test]
fn elementwise() {
    // The derivative of |x| at 0 is 0 as in PyTorch; JAX has 1.
    check(include_str!("reference/elementwise.json"), &["abs_at_0"]);
}

#[test]
fn reductions() {
    check(include_str!("reference/reduce.json"), &[]);
}

#[test]
fn shapes() {
    check(include_str!("reference/shape.json"), &[]);
}

#[test]
fn rows_and_triangles() {
    check(include_str!("reference/gather.json"), &[]);
}

#[test]
fn products() {
    check(include_str!("reference/dot.json"), &[]);
}

#[test]
fn convolutions() {
    check(include_str!("reference/convolution.json"), &[]);
}

#[test]
fn pooling() {
    check(include_str!("reference/pooling.json"), &[]);
}

#[test]
fn softmax_family() {
    check(include_str!("reference/softmax.json"), &[]);
}

#[test]
fn random_numbers() {
    // A key is made by the crate's own rule, a u64 in two words, and integers are not drawn yet.
    check(include_str!("reference/random_numbers.json"), &["key", "randint"]);
}
