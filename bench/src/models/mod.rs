//! The models that are compared with a peer's, as a user would write them.

mod gpt;
mod mlp;
mod resnet;

pub(crate) use gpt::Gpt;
pub(crate) use mlp::Mlp;
pub(crate) use resnet::ResNetClassifier;
