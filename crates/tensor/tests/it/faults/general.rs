//! Rules for all operations: the first fault survives and names the method and the line, and sizes
//! may be arbitrarily large.

use fulmen_tensor::{
    Accelerator, Convolution, DType, Devices, Function, Literal, Pooling, Runtime, Tensor,
    TensorType, TriangularSolve, autocast, grad, random,
};

use crate::faults::zeros;

/// Checks the whole message without the location, which must be in this file.
#[track_caller]
fn check(tensor: &Tensor, expected: &str) {
    let fault = tensor.fault().expect("the operation must be refused");
    assert_eq!(format!("{}: {}", fault.operation(), fault.message()), expected);
    assert!(fault.location().file().ends_with("general.rs"), "{fault}");
    assert!(fault.to_string().contains(&format!("general.rs:{}", fault.location().line())));
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
    assert!(error.to_string().contains(&format!("general.rs:{line}:")), "{error}");
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
        &(Tensor::zeros(DType::U64, [2]) * Tensor::zeros(DType::I32, [2])),
        "mul: no integer holds both u64[2] and i32[2]; convert one of them with to_dtype()",
    );
    check(
        &Tensor::zeros(DType::I32, [2]).exp(),
        "exp: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(
        &zeros([2]).and(zeros([2])),
        "and: takes integers or booleans, not f32; convert with to_dtype() first",
    );
    check(
        &zeros([2]).select(&zeros([2]), &zeros([2])),
        "select: the condition must be bool, not f32[2]; make one with lt(), eq() or another comparison",
    );
}

#[test]
fn u64_and_signed_integers_do_not_meet() {
    let a = Tensor::zeros(DType::I32, [1, 1]);
    let b = Tensor::zeros(DType::U64, [1, 1]);
    let differ =
        "no integer holds both i32[1, 1] and u64[1, 1]; convert one of them with to_dtype()";
    check(&a.lt(&b), &format!("lt: {differ}"));
    check(&a.eq(&a).select(&a, &b), &format!("select: {differ}"));
    check(&a.matmul(&b), &format!("matmul: {differ}"));
    check(&a.dot_general(&b, ([], []), (1, 0)), &format!("dot_general: {differ}"));
    check(&a.convolution(&b, &Convolution::new(0)), &format!("convolution: {differ}"));
    let joined = "the dtypes differ: tensor 1 is u64[1, 1] and those before are i32; convert with to_dtype()";
    check(&Tensor::concatenate(&[&a, &b], 0), &format!("concatenate: {joined}"));
    check(&Tensor::stack(&[&a, &b], 0), &format!("stack: {joined}"));
    check(
        &a.and(zeros([1, 1])),
        "and: takes integers or booleans, not f32; convert with to_dtype() first",
    );
}

#[test]
fn elementwise_operations_and_linear_algebra_say_what_they_do_not_take() {
    let i32s = Tensor::zeros(DType::I32, [2, 2]);
    let c64s = Tensor::zeros(DType::C64, [2, 2]);
    check(
        &i32s.log2(),
        "log2: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(
        &i32s.logaddexp(1.0),
        "logaddexp: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(&c64s.erf(), "erf: takes real numbers, not c64; use real(), imag() or abs() first");
    check(&c64s.lt(1.0), "lt: c64 has no order; compare real(), imag() or abs()");
    check(
        &c64s.to_dtype(DType::F32),
        "to_dtype: cannot convert c64 to f32; use real(), imag() or abs()",
    );
    check(&c64s.max(0), "max: takes real numbers, not c64; use real(), imag() or abs() first");
    check(
        &i32s.clamp(0.5, 1.0),
        "number: 0.5 is not an i32; convert the tensor with to_dtype() first",
    );
    check(
        &zeros([2]).clamp(zeros([3]), 1.0),
        "clamp: [2] and [3] do not broadcast: counted from the last, axis -1 has 2 and 3, and neither is 1",
    );
    check(
        &zeros([3]).bitcast(DType::F64),
        "bitcast: 2 of f32 make one f64: the last axis of f32[3] must have that size",
    );
    check(
        &c64s.bitcast(DType::U64),
        "bitcast: cannot read the bits of c64 as u64: neither dtype may be bool or complex",
    );
    check(&zeros([2, 3]).fft([]), "fft: takes one to three axes, not 0: []");
    check(&zeros([2, 3]).fft(2), "fft: axis 2 is not one of the 2 axes of [2, 3]");
    check(&zeros([2, 0]).rfft(1), "rfft: f32[2, 0] has no element along axis 1");
    check(
        &i32s.ifft(0),
        "ifft: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(&c64s.irfft(1, 0), "irfft: n must be at least 1, but it is 0");
    check(
        &c64s.irfft(1, 4),
        "irfft: the last transformed axis of c64[2, 2] must have n/2 + 1 elements, which is 3 for n = 4",
    );
    check(
        &zeros([2, 3]).cholesky(),
        "cholesky: takes square matrices on the last two axes, not f32[2, 3]",
    );
    check(
        &i32s.cholesky(),
        "cholesky: takes floating-point numbers, not i32; convert with to_dtype() first",
    );
    check(
        &zeros([2, 2]).triangular_solve(&zeros([3, 1]), &TriangularSolve::lower()),
        "triangular_solve: f32[2, 2] has 2 unknowns, but the right side, f32[3, 1], has 3 rows",
    );
    check(
        &zeros([3, 2, 2]).triangular_solve(&zeros([2, 2, 2]), &TriangularSolve::upper()),
        "triangular_solve: [3] and [2] do not broadcast: counted from the last, axis -1 has 3 and 2, and neither is 1",
    );
}

#[test]
fn a_derivative_that_does_not_exist_is_refused() {
    let x = zeros([2]);
    let gradient = |y: Tensor| grad(&y.sum_all(), &[&x]).remove(0);
    check(
        &gradient(x.nextafter(1.0)),
        "nextafter: has no derivative; detach() its operands if you need none",
    );
    check(
        &gradient(x.bitcast(DType::Bf16).to_dtype(DType::F32)),
        "bitcast: the bits have no derivative; detach() the operand",
    );
    // Piecewise constant operations have zero gradients, and so do inputs without effect.
    for y in [
        x.floor(),
        x.round(),
        x.sign(),
        x.floor_divide(2.0),
        x.to_dtype(DType::I32).to_dtype(DType::F32),
        x.detach(),
    ] {
        assert_eq!(gradient(y).eval().unwrap().to_f64(), [0.0, 0.0]);
    }
    let z = Tensor::complex(&x, &x);
    check(
        &grad(&z.sum_all(), &[&z])[0],
        "grad: the loss must be a floating-point scalar, but it is c64[]; reduce it with mean_all() or sum_all()",
    );
}

#[test]
fn autocast_to_an_integer_is_refused_where_a_product_would_use_it() {
    let (product, sum) =
        autocast(Some(DType::I32), || (zeros([2, 2]).matmul(&zeros([2, 2])), zeros([2]) + 1.0));
    check(&product, "matmul: autocast to i32: products need a floating-point dtype");
    assert!(sum.fault().is_none());
}

#[test]
fn shape_operations_say_what_they_expected() {
    check(
        &zeros([2, 3]).reshape([4]),
        "reshape: [2, 3] has 6 elements and cannot become [4], which has 4",
    );
    check(&zeros([2, 3]).sum(2), "sum: axis 2 is not one of the 2 axes of [2, 3]");
    check(
        &zeros([2, 3]).permute([0, 0]),
        "permute: [0, 0] does not name each of the 2 axes of [2, 3] once",
    );
    check(&zeros([2, 3]).squeeze(0), "squeeze: axis 0 of [2, 3] has size 2, not 1");
    check(
        &zeros([3]).slice(&[2], &[4], &[1]),
        "slice: 2..4 in steps of 1 is not within axis 0 of [3]",
    );
    check(
        &zeros([3]).broadcast_to([2]),
        "broadcast_to: [3] cannot be broadcast to [2] along the axes [0]",
    );
    check(
        &Tensor::concatenate(&[] as &[Tensor], 0),
        "concatenate: there is nothing to join: the list of tensors is empty",
    );
    check(
        &Tensor::from_slice(&[1.0f32, 2.0], [3]),
        "from_slice: got 2 elements for the shape [3], which has 3",
    );
    check(&zeros([0, 2]).max(0), "max: f32[0, 2] has no element along the axes [0] to choose from");
}

#[test]
fn rows_that_cannot_be_taken_or_added_are_refused() {
    let table = zeros([3, 2]);
    let rows = Tensor::from_slice(&[0i32, 2], [2]);
    check(&table.take(2, &rows), "take: axis 2 is not one of the 2 axes of [3, 2]");
    check(
        &table.take(0, &zeros([2])),
        "take: the indices must be integers, not f32; convert with to_dtype() first",
    );
    check(&zeros([0, 2]).take(0, &rows), "take: [0, 2] has no element along axis 0");
    check(&zeros([]).take(0, &rows), "take: axis 0 is not one of the 0 axes of []");
    check(
        &table.index_add(0, &rows, &zeros([3, 2])),
        "index_add: the updates have the shape [3, 2]; for indices [2] along axis 0 of [3, 2] it must be [2, 2]",
    );
    check(
        &Tensor::zeros(DType::I32, [3]).index_add(0, &rows, &Tensor::zeros(DType::U64, [2])),
        "index_add: no integer holds both i32[3] and u64[2]; convert one of them with to_dtype()",
    );
    check(
        &Tensor::zeros(DType::Bool, [3]).index_add(0, &rows, &Tensor::zeros(DType::Bool, [2])),
        "index_add: takes numbers, not bool; convert with to_dtype() first",
    );
    let many = Tensor::zeros(DType::I32, [1 << 45]);
    check(
        &table.take(0, &many),
        "take: f32[35184372088832, 2] has more bytes than a program can address, 2^47",
    );
    check(
        &zeros([3]).tril(0),
        "tril: [3] has fewer than two axes, but rows and columns are needed",
    );
    check(&zeros([]).triu(0), "triu: [] has fewer than two axes, but rows and columns are needed");
}

#[test]
fn windows_say_which_channels_and_sizes_do_not_fit() {
    check(
        &zeros([1, 3, 8, 8]).convolution(&zeros([4, 2, 3, 3]), &Convolution::new(2)),
        "convolution: the input f32[1, 3, 8, 8] has 3 channels; the kernel f32[4, 2, 3, 3] in 1 group takes 2",
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
        "grad: the loss must be a floating-point scalar, but it is f32[3]; reduce it with mean_all() or sum_all()",
    );
    let labels = Tensor::zeros(DType::I32, [3]);
    check(
        &grad(&x.sum_all(), &[&labels])[0],
        "grad: there is no gradient with respect to a tensor of i32[3]",
    );
}

#[test]
fn random_draws_check_their_bounds_and_keys() {
    let key = random::key(0);
    check(
        &random::uniform(&key, DType::F32, [2], 1.0, 1.0),
        "uniform: the lower bound 1 must be below the upper, 1",
    );
    check(
        &random::bits(&zeros([2]), [2]),
        "bits: a random key must be u32[2], not f32[2]; make one with \
                                            random::key()",
    );
}

#[test]
fn a_placeholder_without_a_value_and_a_wrong_donation_are_errors() {
    let loose = Tensor::placeholder("x", TensorType::new(DType::F32, [2]));
    let line = line!() + 1;
    let message = (loose.clone() + 1.0).eval().unwrap_err().to_string();
    assert!(
        message.starts_with(
            "eval: the tensor has no value: it depends on the placeholder `x`, an input"
        ),
        "{message}"
    );
    assert!(message.contains(&format!("general.rs:{line}:")), "{message}");
    let message = Function::new("f", Vec::new(), vec![loose]).stablehlo().unwrap_err().to_string();
    assert!(
        message
            .starts_with("the placeholder `x` has no value: pass it as an input of the function"),
        "{message}"
    );

    let f = Function::trace("f", TensorType::new(DType::F32, [2]), |x| x.sum_all());
    let message = f.donate(0, 0).err().expect("the types differ").to_string();
    assert_eq!(
        message,
        "f: cannot donate parameter 0, f32[2], to result 0, f32[]: the types differ"
    );
}

#[test]
fn an_unknown_accelerator_lists_the_known_ones() {
    let message = "tpux".parse::<Accelerator>().unwrap_err().to_string();
    assert_eq!(message, "`tpux` is not an accelerator; there are: auto, cpu, cuda, tpu");
}

#[test]
fn sizes_beyond_the_address_space_are_refused_with_the_users_line() {
    let too_large = |name: &str, ty: &str| {
        format!("{name}: {ty} has more bytes than a program can address, 2^47")
    };
    check(&zeros([1 << 40, 1 << 40]), &too_large("zeros", "f32[1099511627776, 1099511627776]"));
    check(&zeros([1 << 62]), &too_large("zeros", "f32[4611686018427387904]"));
    check(&zeros([usize::MAX]), &too_large("zeros", "f32[18446744073709551615]"));
    check(&zeros([0, usize::MAX]), &too_large("zeros", "f32[0, 18446744073709551615]"));
    check(
        &zeros([2]).broadcast_to([1 << 60, 2]),
        &too_large("broadcast_to", "f32[1152921504606846976, 2]"),
    );
    let labels = Tensor::from_slice(&[1i32, 2], [2]);
    check(&labels.one_hot(1 << 50), &too_large("one_hot", "i32[2, 1125899906842624]"));
    check(&Tensor::arange(DType::U8, usize::MAX), &too_large("arange", "u8[18446744073709551615]"));
    let placeholder = Tensor::placeholder("x", TensorType::new(DType::F32, [usize::MAX, 2]));
    check(&placeholder, &too_large("placeholder", "f32[18446744073709551615, 2]"));
    check(
        &placeholder.flatten(0, 1).mean_all(),
        &too_large("placeholder", "f32[18446744073709551615, 2]"),
    );
    let bytes = Literal::from_bytes(TensorType::new(DType::U8, [0, usize::MAX]), &[]);
    assert!(bytes.unwrap_err().to_string().contains("more bytes than a program can address"));
}

#[test]
fn attributes_beyond_the_address_space_are_refused() {
    const REACH: &str = "is beyond what a program can address, 2^47";
    let x = zeros([4]);
    let zero = Tensor::scalar(0.0f32);
    check(
        &x.pad(&zero, &[i64::MAX], &[i64::MAX], &[0]),
        &format!("pad: low 9223372036854775807 of axis 0 {REACH}"),
    );
    check(
        &x.pad(&zero, &[i64::MIN], &[0], &[0]),
        &format!("pad: low -9223372036854775808 of axis 0 {REACH}"),
    );
    check(
        &x.pad(&zero, &[0], &[0], &[1 << 62]),
        &format!("pad: interior 4611686018427387904 of axis 0 {REACH}"),
    );
    check(
        &x.pad(&zero, &[0], &[0], &[usize::MAX]),
        &format!("pad: interior 18446744073709551615 of axis 0 {REACH}"),
    );
    check(
        &x.slice(&[0], &[4], &[usize::MAX]),
        &format!("slice: stride 18446744073709551615 of axis 0 {REACH}"),
    );
    let image = zeros([1, 1, 5, 5]);
    let kernel = zeros([1, 1, 3, 3]);
    let how = || Convolution::new(2);
    check(
        &image.convolution(&kernel, &how().groups(usize::MAX)),
        "convolution: the input f32[1, 1, 5, 5] has 1 channel; the kernel f32[1, 1, 3, 3] in 18446744073709551615 \
         groups takes 18446744073709551615",
    );
    for (what, how) in [
        ("padding 9223372036854775807", how().padding([(i64::MAX, 1), (0, 0)])),
        ("dilation 18446744073709551615", how().dilation([usize::MAX, 1])),
        ("the dilated kernel size 140737488355329", how().dilation([1 << 46, 1])),
        ("stride 18446744073709551615", how().stride([usize::MAX, 1])),
    ] {
        check(&image.convolution(&kernel, &how), &format!("convolution: {what} of axis 2 {REACH}"));
    }
    for (what, how) in [
        ("window 9223372036854775808", Pooling::new([1 << 63, 1])),
        ("window 18446744073709551615", Pooling::new([usize::MAX, usize::MAX])),
        ("stride 18446744073709551615", Pooling::new([2, 2]).stride([usize::MAX, 1])),
    ] {
        check(&image.max_pool(&how), &format!("max_pool: {what} of axis 2 {REACH}"));
        check(&image.avg_pool(&how), &format!("avg_pool: {what} of axis 2 {REACH}"));
    }
    let refused = image.max_pool(&Pooling::new([2, 2]).padding([usize::MAX / 2 + 1, 0]));
    assert!(refused.fault().unwrap().message().contains("more than half of the window 2"));
}

#[test]
fn a_number_that_the_dtype_does_not_hold_is_refused() {
    let i32s = Tensor::from_slice(&[0i32, 1, 2, 3], [4]);
    let u8s = Tensor::from_slice(&[0u8, 255], [2]);
    check(&(&i32s * 0.5), "number: 0.5 is not an i32; convert the tensor with to_dtype() first");
    check(&(0.5 * &i32s), "number: 0.5 is not an i32; convert the tensor with to_dtype() first");
    check(&i32s.ge(0.5), "number: 0.5 is not an i32; convert the tensor with to_dtype() first");
    check(&(&u8s + -1.0), "number: -1 is not a u8; convert the tensor with to_dtype() first");
    check(&u8s.lt(300.0), "number: 300 is not a u8; convert the tensor with to_dtype() first");
    check(
        &i32s.eq(f64::NAN),
        "number: NaN is not an i32; convert the tensor with to_dtype() first",
    );
    let i64s = Tensor::from_slice(&[i64::MAX], [1]);
    check(
        &i64s.eq(9_223_372_036_854_775_808.0),
        "number: 9223372036854776000 is not an i64; convert the tensor with to_dtype() first",
    );
    check(
        &u8s.lt(1.0).eq(2.0),
        "number: 2 is not a bool; convert the tensor with to_dtype() first",
    );
    assert_eq!(u8s.eq(255.0).eval().unwrap().to_f64(), [0.0, 1.0]);
    assert_eq!(i64s.eq(-9_223_372_036_854_775_808.0).eval().unwrap().to_f64(), [0.0]);
    check(
        &Tensor::ones(DType::U8, [1, 1, 16, 16]).avg_pool(&Pooling::new([16, 16])),
        "avg_pool: a window has 256 elements, which does not fit u8; convert with to_dtype() first",
    );
}

#[test]
fn faults_carry_the_name_of_the_method_that_was_called() {
    let x = zeros([2, 3]);
    let integers = Tensor::zeros(DType::I32, [2, 3]);
    let floats = "takes floating-point numbers, not i32; convert with to_dtype() first";
    let axis = "axis 3 is not one of the 2 axes of [2, 3]";
    for (name, of_integers, of_axis) in [
        ("softmax", integers.softmax(0), x.softmax(3)),
        ("log_softmax", integers.log_softmax(0), x.log_softmax(3)),
        ("logsumexp", integers.logsumexp(0), x.logsumexp(3)),
    ] {
        check(&of_integers, &format!("{name}: {floats}"));
        check(&of_axis, &format!("{name}: {axis}"));
    }
    let complex = Tensor::zeros(DType::C64, [2, 3]);
    let real = "takes real numbers, not c64; use real(), imag() or abs() first";
    for (name, of_complex, of_axis) in
        [("var", complex.var(0), x.var(3)), ("mean", complex.mean(0), x.mean(3))]
    {
        check(&of_complex, &format!("{name}: {real}"));
        check(&of_axis, &format!("{name}: {axis}"));
    }
    check(&x.narrow(1, 2, 2), "narrow: 2 elements from 2 on are not within axis 1 of [2, 3]");
    check(
        &Tensor::stack(&[&x, &zeros([2])], 0),
        "stack: tensor 1 is f32[2] and the first is f32[2, 3]: their shapes must agree",
    );
    check(
        &Tensor::stack(&[] as &[Tensor], 0),
        "stack: there is nothing to join: the list of tensors is empty",
    );
    check(&Tensor::stack(&[&x], 4), "stack: [2, 3] has no position 4 for a new axis");
    check(
        &Tensor::zeros(DType::C64, [2]).argmax(0),
        "argmax: takes real numbers, not c64; use real(), imag() or abs() first",
    );
    check(&zeros([2]).t(), "t: [2] has fewer than two axes to swap");
    check(
        &zeros([2]).broadcast_in_dim([3], &[0]),
        "broadcast_in_dim: [2] cannot be broadcast to [3] along the axes [0]",
    );
    let key = "a random key must be u32[2], not f32[2, 3]; make one with random::key()";
    check(&random::normal(&x, DType::F32, [2]), &format!("normal: {key}"));
    check(&random::uniform(&x, DType::F32, [2], 0.0, 1.0), &format!("uniform: {key}"));
    check(&random::bernoulli(&x, 0.5, [2]), &format!("bernoulli: {key}"));
    check(&random::fold_in(&x, 1), &format!("fold_in: {key}"));
}

#[test]
fn the_bounds_of_a_draw_must_differ_as_f32_and_be_within_its_range() {
    let draw = |low, high| random::uniform(&random::key(0), DType::F32, [2], low, high);
    assert_eq!(
        draw(1.0, 1.0 + 1e-12).fault().unwrap().message(),
        "the lower bound 1 must be below the upper, 1.000000000001, also when both are f32"
    );
    for (low, high) in [(-3e38, 3e38), (0.0, f64::INFINITY)] {
        let message = format!("the bounds {low} and {high} differ by more than f32 can represent");
        assert_eq!(draw(low, high).fault().unwrap().message(), message);
    }
    assert!(draw(f64::NAN, 1.0).fault().is_some());
}

#[test]
fn parameters_that_are_no_placeholders_of_their_own_are_refused() {
    let x = Tensor::placeholder("x", TensorType::new(DType::F32, [2]));
    let expression = &x + 1.0;
    let message = Function::new("f", vec![x.clone(), expression.clone()], vec![expression])
        .stablehlo()
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("`f`: parameter 1, Tensor(add: f32[2]), is not a placeholder; "),
        "{message}"
    );
    assert!(message.contains("general.rs:"), "{message}");
    let message = Function::new("f", vec![x.clone(), x.clone()], vec![x])
        .stablehlo()
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with(
            "`f`: parameter 1, Tensor(placeholder x: f32[2]), repeats an earlier parameter; each parameter must"
        ),
        "{message}"
    );
}

#[test]
fn what_the_cpu_compiler_cannot_count_is_refused_with_the_users_line() {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let line = line!() + 1;
    let error = runtime.eval(&Tensor::iota(DType::I32, [1 << 37], 0)).unwrap_err().to_string();
    assert!(
        error.contains("i32[137438953472] has more elements than the CPU's compiler supports"),
        "{error}"
    );
    assert!(error.contains(&format!("general.rs:{line}:")), "{error}");
}
