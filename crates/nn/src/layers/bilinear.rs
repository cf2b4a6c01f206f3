//! [`Bilinear`]: a bilinear form of two inputs.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor};

use super::linear::bias_init;
use crate::library::{NN, live};
use crate::{Module, Parameter};

/// `y[o] = Σᵢⱼ x1[i]·weight[o, i, j]·x2[j] + bias[o]` over the last axes: `[…, in1]` and `[…, in2]`
/// become `[…, out]`. Like PyTorch's `nn.Bilinear`.
///
/// Weight `[out, in1, in2]` and bias `[out]` are initialized uniformly in `±1/√in1`.
///
/// ```
/// use fulmen_nn::{Bilinear, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = Bilinear::new(20, 30, 40);
/// layer.initialize(0);
/// let y = layer.forward(&Tensor::zeros(DType::F32, [8, 20]), &Tensor::zeros(DType::F32, [8, 30]));
/// assert_eq!(y.ty().to_string(), "f32[8, 40]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Bilinear {
    /// `[out, in1, in2]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    in1: usize,
    in2: usize,
    out: usize,
}

impl Bilinear {
    /// A layer with a bias.
    pub fn new(in1_features: usize, in2_features: usize, out_features: usize) -> Bilinear {
        let weight =
            Parameter::new([out_features, in1_features, in2_features], bias_init(in1_features));
        Bilinear { weight, bias: None, in1: in1_features, in2: in2_features, out: out_features }
            .bias(true)
    }

    /// With or without a bias.
    pub fn bias(mut self, bias: bool) -> Bilinear {
        self.bias = if bias { Some(Parameter::new([self.out], bias_init(self.in1))) } else { None };
        self
    }

    /// The product and the bias.
    ///
    /// Poisoned if the last axes are not the features of this layer, or the other axes differ.
    #[track_caller]
    pub fn forward(&self, x1: impl AsTensor, x2: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x1 = x1.as_tensor();
            let x2 = x2.as_tensor();
            live(&[x1, x2])?;
            let outer = &x1.shape()[..x1.rank().saturating_sub(1)];
            let shapes_match = x1.shape().dims() == [outer, &[self.in1]].concat()
                && x2.shape().dims() == [outer, &[self.in2]].concat();
            if !shapes_match {
                let message = format!(
                    "the inputs {} and {} are not [.., {}] and [.., {}] with the same leading axes",
                    x1.ty(),
                    x2.ty(),
                    self.in1,
                    self.in2
                );
                return Err(message.into());
            }
            let outer = outer.to_vec();
            // First the product of x1 with the weight, which all samples share, then a product with
            // x2 for each sample.
            let weight = self
                .weight
                .get()
                .permute([1, 0, 2])
                .reshape([self.in1, self.out.saturating_mul(self.in2)]);
            let half =
                x1.matmul(&weight).reshape([outer.as_slice(), &[self.out, self.in2]].concat());
            let product =
                half.matmul(&x2.unsqueeze(-1)).reshape([outer.as_slice(), &[self.out]].concat());
            Ok(match &self.bias {
                // Otherwise the bias would widen a 16-bit product under autocast to f32.
                Some(bias) => &product + bias.get().to_dtype(product.dtype()),
                None => product,
            })
        })
    }
}

impl fmt::Display for Bilinear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bilinear({} x {} -> {})", self.in1, self.in2, self.out)
    }
}
