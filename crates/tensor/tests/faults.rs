//! Mistakes in an expression: each names the operation, the shapes and the user's file and line, and none panics.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Accelerator, Convolution, DType, Function, Pooling, Tensor, TensorType, grad, random};

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

/// Checks the whole message but for the line, which must be one of this file.
#[track_caller]
fn check(tensor: &Tensor, expected: &str) {
    let fault = tensor.fault().expect("the operation must be refused");
    assert_eq!(format!("{}: {}", fault.operation(), fault.message()), expected);
    assert!(fault.location().file().ends_with("faults.rs"), "{fault}");
    assert!(fault.to_string().contains(&format!("faults.rs:{}", fault.location().line())));
}

#[test]
fn a_matmul_that_does_not_fit_names_both_shapes_and_the_line() {
    let line = line!() + 1;
    let product = zeros([32, 784]).matmul(&zeros([512, 10]));
    check(
        &product,
        "matmul: cannot multiply [32, 784] by [512, 10]: the last axis of the left has 784 elements, the rows of the \
         right are 512",
    );
    let error = product.relu().mean_all().eval().unwrap_err();
    assert!(error.to_string().contains(&format!("faults.rs:{line}:")), "{error}");
    assert!(error.fault().is_some() && !error.is_runtime());
}

#[test]
fn the_first_fault_survives_everything_computed_from_it() {
    let first = zeros([2]) + zeros([3]);
    let later = (first.clone().matmul(&zeros([9, 9])) + 1.0).reshape([77]);
    assert_eq!(later.fault().unwrap().to_string(), first.fault().unwrap().to_string());
    assert_eq!(later.size(-1), 1);
}

#[test]
fn elementwise_operations_say_why_shapes_and_dtypes_do_not_fit() {
    check(
        &(zeros([2, 3]) + zeros([4])),
        "add: [2, 3] and [4] do not broadcast: counted from the last, axis -1 has 3 and 4, and neither is 1",
    );
    check(
        &(zeros([2]) * Tensor::zeros(DType::I32, [2])),
        "mul: the dtypes differ: f32[2] and i32[2]; convert one of them with to_dtype()",
    );
    check(
        &Tensor::zeros(DType::I32, [2]).exp(),
        "exp: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(&zeros([2]).and(zeros([2])), "and: takes integers or booleans, not f32; convert with to_dtype() first");
    check(
        &zeros([2]).select(&zeros([2]), &zeros([2])),
        "select: the condition must be bool, it is f32[2]; compare() it first",
    );
}

#[test]
fn shape_operations_say_what_they_expected() {
    check(&zeros([2, 3]).reshape([4]), "reshape: [2, 3] has 6 elements and cannot become [4], which has 4");
    check(&zeros([2, 3]).sum(&[2], false), "sum: axis 2 is not one of the 2 axes of [2, 3]");
    check(&zeros([2, 3]).permute(&[0, 0]), "transpose: [0, 0] does not name each of the 2 axes of [2, 3] once");
    check(&zeros([2, 3]).squeeze(0), "squeeze: axis 0 of [2, 3] has size 2, not 1");
    check(&zeros([3]).slice(&[2], &[4], &[1]), "slice: 2..4 in steps of 1 does not lie within axis 0 of [3]");
    check(&zeros([3]).broadcast_to([2]), "broadcast_to: [3] cannot be broadcast to [2] along the axes [0]");
    check(&Tensor::concatenate(&[], 0), "concatenate: there is nothing to join: the list of tensors is empty");
    check(&Tensor::from_slice(&[1.0f32, 2.0], [3]), "from_slice: 2 elements were given for the shape [3], which has 3");
    check(&zeros([0, 2]).max(&[0], false), "max: f32[0, 2] has no element along the axes [0] to choose from");
}

#[test]
fn windows_say_which_channels_and_sizes_do_not_fit() {
    check(
        &zeros([1, 3, 8, 8]).convolution(&zeros([4, 2, 3, 3]), &Convolution::new(2)),
        "convolution: the input f32[1, 3, 8, 8] has 3 channels; the kernel f32[4, 2, 3, 3] in 1 groups takes 2",
    );
    check(
        &zeros([1, 3, 8]).convolution(&zeros([4, 3, 3, 3]), &Convolution::new(2)),
        "convolution: a convolution over 2 axes takes an input [batch, channels, …] and a kernel [out, in, …] of rank \
         4; they are f32[1, 3, 8] and f32[4, 3, 3, 3]",
    );
    check(
        &zeros([1, 3, 8, 8]).max_pool(&Pooling::new([2, 2]).stride([0, 1])),
        "max_pool: window and stride must be at least 1, axis 2 has 2 and 0",
    );
}

#[test]
fn gradients_are_refused_where_there_are_none() {
    let x = zeros([3]);
    check(
        &grad(&x, &[&x])[0],
        "grad: the loss must be a floating-point scalar, it is f32[3]; reduce it with mean_all() or sum_all()",
    );
    let labels = Tensor::zeros(DType::I32, [3]);
    check(&grad(&x.sum_all(), &[&labels])[0], "grad: there is no gradient with respect to a tensor of i32[3]");
}

#[test]
fn random_draws_check_their_bounds_and_keys() {
    let key = random::key(0);
    check(&random::uniform(&key, DType::F32, [2], 1.0, 1.0), "uniform: the lower bound 1 must be below the upper, 1");
    check(
        &random::bits(&zeros([2]), [2]),
        "threefry2x32: a random key is u32[2], this is f32[2]; make one with random::key()",
    );
}

#[test]
fn a_placeholder_without_a_value_and_a_wrong_donation_are_errors() {
    let loose = Tensor::placeholder("x", TensorType::new(DType::F32, [2]));
    let message = (loose + 1.0).eval().unwrap_err().to_string();
    assert!(message.starts_with("the placeholder `x` has no value: pass it as an input of the function"), "{message}");

    let types = [TensorType::new(DType::F32, [2])];
    let f = Function::trace("f", &types, |x| vec![x[0].sum_all()]);
    let message = f.donate(0, 0).err().expect("the types differ").to_string();
    assert_eq!(message, "f: cannot donate parameter 0, f32[2], to result 0, f32[]: the types differ");
}

#[test]
fn an_unknown_accelerator_lists_the_known_ones() {
    let message = "tpux".parse::<Accelerator>().unwrap_err().to_string();
    assert_eq!(message, "`tpux` is no accelerator; there are: auto, cpu, cuda, tpu");
}
