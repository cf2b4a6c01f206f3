//! Invalid calls of convolution, pooling and interpolation.

use expect_test::expect;
use fulmen_tensor::{Convolution, DType, Interpolation, Pooling, Tensor};

use crate::faults::{check_all, check_words, integers, zeros};

#[test]
fn convolutions() {
    let image = zeros([1, 2, 5, 5]);
    let kernel = zeros([4, 2, 3, 3]);
    let how = || Convolution::new(2);
    check_all(
        [
            image.convolution(&zeros([4, 3, 3, 3]), &how()),
            image.convolution(&zeros([4, 2, 0, 3]), &how()),
            image.convolution(&kernel, &how().stride([0, 1])),
            image.convolution(&kernel, &how().stride([1])),
            image.convolution(&kernel, &how().dilation([1, 1, 1])),
            image.convolution(&zeros([3, 1, 3, 3]), &how().groups(2)),
            image.convolution(&zeros([4, 2, 3]), &Convolution::new(1)),
            image.conv_transpose(&zeros([3, 4, 3, 3]), &how()),
            image.conv_transpose(&zeros([2, 4, 3, 3]), &how().output_padding([2, 2])),
        ],
        expect![[r#"
            convolution: the input f32[1, 2, 5, 5] has 2 channels; the kernel f32[4, 3, 3, 3] in 1 group takes 3
            convolution: the kernel f32[4, 2, 0, 3] has no element along axis 2
            convolution: stride and dilation must be at least 1
            convolution: stride, padding and dilation must have one entry for each spatial axis: Convolution { stride: [1], padding: Numbers([(0, 0), (0, 0)]), output_padding: [0, 0], dilation: [1, 1], groups: 1 }
            convolution: stride, padding and dilation must have one entry for each spatial axis: Convolution { stride: [1, 1], padding: Numbers([(0, 0), (0, 0)]), output_padding: [0, 0], dilation: [1, 1, 1], groups: 1 }
            convolution: 3 output channels cannot be split into 2 groups
            convolution: a convolution over 1 axes takes an input [batch, channels, …] and a kernel [out, in, …] of rank 3; they are f32[1, 2, 5, 5] and f32[4, 2, 3]
            conv_transpose: the input f32[1, 2, 5, 5] has 2 channels; the kernel f32[3, 4, 3, 3] in 1 group takes 3
            conv_transpose: output_padding 2 of spatial axis 0 must be less than the stride 1 or the dilation 1
        "#]],
    );
}

#[test]
fn poolings() {
    let x = zeros([1, 2, 5, 5]);
    check_all(
        [
            x.max_pool(&Pooling::new([2, 2]).stride([0, 1])),
            x.max_pool(&Pooling::new([0, 2])),
            x.max_pool(&Pooling::new([2, 2]).padding([2, 0])),
            x.max_pool(&Pooling::new([2; 5])),
            x.avg_pool(&Pooling::new([2, 2]).divisor(0)),
            x.adaptive_avg_pool(&[0, 2]),
            x.adaptive_max_pool(&[1, 1, 1, 1, 1]),
            x.interpolate(&[0, 3], Interpolation::Nearest),
            x.interpolate_by(&[-1.0, 2.0], Interpolation::Linear { align_corners: false }),
            integers([1, 1, 2]).interpolate(&[4], Interpolation::Linear { align_corners: true }),
        ],
        expect![[r#"
            max_pool: window and stride must be at least 1, axis 2 has 2 and 0
            max_pool: window and stride must be at least 1, axis 2 has 0 and 0
            max_pool: padding 2 is more than half of the window 2: some windows would hold only padding
            max_pool: f32[1, 2, 5, 5] is not a [batch, channels, …] for windows over 5 axes: Pooling { window: [2, 2, 2, 2, 2], stride: [2, 2, 2, 2, 2], padding: [0, 0, 0, 0, 0], dilation: [1, 1, 1, 1, 1], ceil_mode: false, count_include_pad: true, divisor: None }
            avg_pool: the divisor must be at least 1
            adaptive_avg_pool: the sizes [0, 2] must be from 1 to 1048576
            adaptive_max_pool: the sizes [1, 1, 1, 1, 1] name more axes than f32[1, 2, 5, 5] has
            interpolate: the sizes [5, 5] and [0, 3] must be from 1 to 1048576
            interpolate_by: the scales [-1.0, 2.0] must be positive numbers
            interpolate: takes floating-point numbers, not i32; convert with to_dtype() first
        "#]],
    );
}

#[test]
fn windows_and_grids_that_cannot_be_are_refused() {
    let x = zeros([1, 4, 5, 5]);
    let w = zeros([4, 2, 3, 3]);
    let how = Convolution::new(2);
    check_words(&x.conv_transpose(&zeros([3, 2, 3, 3]), &how), "has 4 channels");
    check_words(&x.conv_transpose(&w, &how.clone().groups(3)), "in 3 groups");
    check_words(
        &x.conv_transpose(&w, &how.clone().output_padding([1, 0])),
        "must be less than the stride",
    );
    check_words(&x.conv_transpose(&w, &how.clone().same()), "does not support same()");
    check_words(&x.conv_transpose(&w, &how.clone().padding([(i64::MIN, 0), (0, 0)])), "2^47");
    check_words(
        &x.convolution(&zeros([2, 4, 3, 3]), &how.same().stride([2, 1])),
        "requires stride 1",
    );
    check_words(&x.max_pool(&Pooling::new([2, 2]).dilation([0, 1])), "dilation must be at least 1");
    check_words(&x.max_pool(&Pooling::new([2, 2]).padding([2, 0])), "more than half of the window");
    check_words(&x.avg_pool(&Pooling::new([2, 2]).divisor(0)), "at least 1");
    check_words(&x.adaptive_avg_pool(&[0]), "must be from 1");
    check_words(&x.adaptive_max_pool(&[1; 5]), "more axes than");
    check_words(&x.interpolate(&[0, 3], Interpolation::Nearest), "must be from 1");
    check_words(&x.interpolate_by(&[f64::NAN], Interpolation::Nearest), "positive numbers");
    let whole = Tensor::zeros(DType::I32, [1, 1, 3]);
    check_words(
        &whole.interpolate(&[2], Interpolation::Linear { align_corners: false }),
        "floating-point",
    );
}
