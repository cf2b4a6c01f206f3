//! Initial values as in transformers.

use fulmen_nn::{Init, Module};

/// Weights, embeddings and tokens begin with a normal distribution of this standard deviation,
/// biases and the rows of padding with zeros; normalizations and scales stay as they are.
pub(crate) fn normal(module: &impl Module, std: f64) {
    for (name, parameter) in module.parameters() {
        if parameter.ty().shape.rank() > 1 {
            let normal = Init::normal(0.0, std);
            parameter.set_init(match parameter.init() {
                Init::ZeroRow { row, .. } => Init::ZeroRow { row, rest: Box::new(normal) },
                _ => normal,
            });
        } else if name.ends_with("bias") {
            parameter.set_init(Init::zeros());
        }
    }
}
