//! The precision of f32 products: the attributes in programs, and their effect on the TPU compiler.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_pjrt::CompileOptions;
use fulmen_tensor::{
    Convolution, DType, Function, MatmulPrecision, Runtime, Tensor, TensorType, grad,
};

const ALL: [MatmulPrecision; 3] =
    [MatmulPrecision::Default, MatmulPrecision::High, MatmulPrecision::Highest];

/// A matrix product, a convolution and their derivatives: three statements for each.
fn products(dtype: DType) -> Function {
    let types = [
        TensorType::new(dtype, [1, 2, 4, 4]),
        TensorType::new(dtype, [3, 2, 3, 3]),
        TensorType::new(dtype, [2, 5]),
    ];
    Function::trace("products", types, |[a, b, c]| {
        let y = a.convolution(&b, &Convolution::new(2)).matmul(&c);
        let loss = (&y * &y).sum_all();
        grad(&loss, &[&a, &b, &c])
    })
}

#[test]
fn names_go_both_ways() {
    for precision in ALL {
        assert_eq!(precision.to_string().parse::<MatmulPrecision>().unwrap(), precision);
    }
    assert_eq!("HIGHEST".parse::<MatmulPrecision>().unwrap(), MatmulPrecision::Highest);
    assert_eq!(
        "bf16".parse::<MatmulPrecision>().unwrap_err().to_string(),
        "`bf16` is not a matmul precision; there are: default, high, highest"
    );
}

#[test]
fn every_product_of_f32_and_its_derivatives_ask_for_it_and_no_other_does() {
    for (precision, name) in ALL.into_iter().zip(["DEFAULT", "HIGH", "HIGHEST"]) {
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            let function = products(dtype).matmul_precision(precision);
            assert_eq!(function.precision(), precision);
            let expected = if dtype == DType::F32 { name } else { "DEFAULT" };
            let text = function.stablehlo().unwrap();
            assert_eq!(
                text.matches(&format!("precision = [{expected}, {expected}]")).count(),
                3,
                "{text}"
            );
            assert_eq!(text.matches("precision = [").count(), 3);
            assert_eq!(
                text.matches(&format!("#stablehlo<precision {expected}>")).count(),
                6,
                "{text}"
            );
            assert_eq!(text.matches("#stablehlo<precision").count(), 6);
        }
    }
}

#[test]
fn a_cpu_computes_f32_products_in_f32_at_every_precision() {
    let runtime = Runtime::global().unwrap();
    // The difference would be 0 if 1/3 were rounded to bf16.
    let third = Tensor::full(DType::F32, [1, 64], 1.0 / 3.0);
    let rounded = third.to_dtype(DType::Bf16).to_dtype(DType::F32);
    for precision in ALL {
        let function = Function::new(
            "f",
            Vec::new(),
            vec![(&third - &rounded).matmul(&third.t()) + third.matmul(&third.t())],
        );
        let compiled = runtime.compile(&function.matmul_precision(precision)).unwrap();
        let outputs = compiled.call(Vec::new()).unwrap();
        let value =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap()[0]
                .to_f64()[0];
        let third = f64::from(1.0f32 / 3.0);
        let expected =
            64.0 * third * (2.0 * third - f64::from(half::bf16::from_f64(1.0 / 3.0).to_f32()));
        assert!((value - expected).abs() < 1e-5, "{precision}: {value}, not {expected}");
    }
}

#[test]
fn a_tpu_takes_more_passes() {
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    let topology = plugin.topology("v5e:1x1").unwrap();
    let mut code = Vec::new();
    for precision in ALL {
        let ty = TensorType::new(DType::F32, [1024, 1024]);
        let function = Function::trace("f", ty, |x| x.matmul(&x)).matmul_precision(precision);
        let program = plugin
            .compile(&topology, &function.stablehlo().unwrap(), &CompileOptions::new())
            .unwrap();
        let products = program.hlo().unwrap().products();
        let passes: Vec<_> = products.iter().map(|p| p.product.passes() as usize).collect();
        assert_eq!(passes, [precision.tpu_passes()], "{precision}");
        code.push(program.memory_analysis().unwrap().generated_code_bytes);
    }
    assert!(code[0] < code[1] && code[1] < code[2], "{code:?}");
}
