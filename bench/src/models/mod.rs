//! The models that are compared with a peer's, as a user would write them.

mod gpt;
mod mlp;
mod resnet;
mod resnet18;
mod resnet50;

pub(crate) use gpt::Gpt;
pub(crate) use mlp::Mlp;
pub(crate) use resnet18::ResNet18;
pub(crate) use resnet50::ResNet50;
