//! Rust's operators on tensors, by value and by reference, with numbers on either side. A number
//! gets the dtype of the tensor.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::Tensor;

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        operators!(@pair $trait $method, Tensor, Tensor);
        operators!(@pair $trait $method, Tensor, &Tensor);
        operators!(@pair $trait $method, &Tensor, Tensor);
        operators!(@pair $trait $method, &Tensor, &Tensor);
        operators!(@number $trait $method, Tensor);
        operators!(@number $trait $method, &Tensor);
    )*};
    (@pair $trait:ident $method:ident, $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, right: $right) -> Tensor {
                Tensor::$method(&self, right)
            }
        }
    };
    (@number $trait:ident $method:ident, $tensor:ty) => {
        impl $trait<f64> for $tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, right: f64) -> Tensor {
                Tensor::$method(&self, right)
            }
        }
        impl $trait<$tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, right: $tensor) -> Tensor {
                let _scope = crate::Scope::open();
                let left = crate::ops::Operand::to_tensor_like(&self, &right);
                Tensor::$method(&left, right)
            }
        }
    };
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

macro_rules! negation {
    ($($tensor:ty;)*) => {$(
        impl Neg for $tensor {
            type Output = Tensor;
            #[track_caller]
            fn neg(self) -> Tensor {
                Tensor::neg(&self)
            }
        }
    )*};
}

negation! {
    Tensor;
    &Tensor;
}
