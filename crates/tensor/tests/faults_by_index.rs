//! Mistakes in what is read, written, moved or pooled: each names the shapes and the user's line.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Combine, Convolution, DType, Interpolation, PadMode, Pooling, Tensor};

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

/// Checks that the message has these words, and that the line is one of this file.
#[track_caller]
fn refused(tensor: &Tensor, words: &str) {
    let fault = tensor.fault().expect("the operation must be refused");
    assert!(fault.message().contains(words), "{fault}");
    assert!(fault.location().file().ends_with("faults_by_index.rs"), "{fault}");
}

#[test]
fn indices_that_do_not_fit_are_refused() {
    let (x, at) = (zeros([2, 3]), Tensor::from_slice(&[0i32, 1], [2]));
    refused(&x.gather(1, &at), "must have the rank of f32[2, 3]");
    refused(&x.gather(1, &zeros([2, 1])), "takes integers, not f32");
    refused(&x.take_along_axis(0, &Tensor::zeros(DType::I32, [1, 2])), "do not go along with f32[2, 3]");
    refused(&x.index_select(0, &Tensor::zeros(DType::I32, [2, 2])), "are no list");
    refused(&x.gather_nd(&Tensor::zeros(DType::I32, [1, 3])), "first k of the 2 axes");
    refused(&x.scatter(1, &Tensor::zeros(DType::I32, [2, 2]), &zeros([1, 2])), "name more elements than");
    refused(&x.index_copy(0, &at, &zeros([2, 2])), "it must be [2, 3]");
    refused(&x.scatter_nd(&Tensor::zeros(DType::I32, [4, 0]), &zeros([4, 2, 3]), Combine::Set), "name no axis");
    refused(&x.dynamic_slice(&[Tensor::scalar(0i32)], &[1, 1]), "1 starts and 2 sizes");
    refused(&x.dynamic_slice(&[Tensor::scalar(0i32), Tensor::scalar(0.0f32)], &[1, 1]), "must be an integer scalar");
    refused(&x.dynamic_slice(&[Tensor::scalar(0i32), Tensor::scalar(0i32)], &[1, 4]), "does not lie within");
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let x = zeros([2, 3]);
    refused(&x.view(&[-1, -1]), "one may be -1");
    refused(&x.view(&[4, -1]), "6 elements cannot become [4, -1]");
    refused(&x.unflatten(1, &[2, -1]), "3 elements cannot become");
    refused(&x.movedim(&[0, 0], &[0, 1]), "named twice");
    refused(&x.expand(&[-1, 2, 3]), "keeps the size of an axis that is there");
    refused(&x.split(&[1, 1], 1)[0], "add up to 2; axis 1 of [2, 3] has 3");
    refused(&x.chunk(0, 0)[0], "no number of chunks");
    refused(&zeros([1 << 20]).unbind(0)[0], "more than 65536 tensors");
    refused(&x.index(0, -3), "there is no index -3");
    refused(&x.slice_along(0, .., 0), "in steps of 0");
    refused(&x.roll(&[1], &[]), "not equally many");
    refused(&x.repeat(&[2]), "fewer axes");
    refused(&x.tile(&[usize::MAX, usize::MAX]), "2^47");
    refused(&x.pad_mode(&[(3, 0)], PadMode::Reflect), "reflection needs less padding");
    refused(&x.pad_mode(&[(0, 4)], PadMode::Circular), "circular padding cannot be more");
    refused(&x.pad_mode(&[(i64::MIN, 0)], PadMode::Zeros), "2^47");
    refused(&x.pad_mode(&[(-2, -2)], PadMode::Zeros), "less than nothing");
}

#[test]
fn windows_and_grids_that_cannot_be_are_refused() {
    let (x, w) = (zeros([1, 4, 5, 5]), zeros([4, 2, 3, 3]));
    let how = Convolution::new(2);
    refused(&x.conv_transpose(&zeros([3, 2, 3, 3]), &how), "has 4 channels");
    refused(&x.conv_transpose(&w, &how.clone().groups(3)), "in 3 groups");
    refused(&x.conv_transpose(&w, &how.clone().output_padding([1, 0])), "must be less than the stride");
    refused(&x.conv_transpose(&w, &how.clone().same()), "in numbers");
    refused(&x.conv_transpose(&w, &how.clone().padding([(i64::MIN, 0), (0, 0)])), "2^47");
    refused(&x.convolution(&zeros([2, 4, 3, 3]), &how.same().stride([2, 1])), "for stride 1");
    refused(&x.max_pool(&Pooling::new([2, 2]).dilation([0, 1])), "dilation must be at least 1");
    refused(&x.max_pool(&Pooling::new([2, 2]).padding([2, 0])), "more than half of the window");
    refused(&x.avg_pool(&Pooling::new([2, 2]).divisor(0)), "at least 1");
    refused(&x.adaptive_avg_pool(&[0]), "must be from 1");
    refused(&x.adaptive_max_pool(&[1; 5]), "more axes than");
    refused(&x.interpolate(&[0, 3], Interpolation::Nearest), "must be from 1");
    refused(&x.interpolate_by(&[f64::NAN], Interpolation::Nearest), "positive numbers");
    let whole = Tensor::zeros(DType::I32, [1, 1, 3]);
    refused(&whole.interpolate(&[2], Interpolation::Linear { align_corners: false }), "floating-point");
}
