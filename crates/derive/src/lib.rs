//! `#[derive(Module)]` shows a module's fields, by name, to a visitor, and `#[derive(Tree)]` makes a
//! struct of tensors a tree.
//!
//! Only the macros. `fulmen-nn` and `fulmen-tensor`, which re-export them, document modules,
//! visitors and trees.

mod generics;
mod module;
mod paths;
mod tree;

use proc_macro::TokenStream;

/// Implements `Module` by visiting every field under its name.
///
/// - Named fields are visited under their names, the fields of a tuple struct under `0`, `1`, …
/// - An enum visits the fields of its current variant. The variant's name is not part of the path,
///   and a variant with a single value is visited as that value. So
///   `enum Norm { Batch(BatchNorm2d), None }` in a field `bn` has `bn.weight`.
/// - Every type parameter that a visited field mentions must be a `Module`.
///
/// Attributes change how a field is visited:
///
/// | attribute | effect |
/// | --- | --- |
/// | `#[module(skip)]` | the field is not visited; its type need not be a `Module` |
/// | `#[module(rename = "fc")]` | the field is visited under this name |
/// | `#[module(flatten)]` | the contents of the field are visited as if they were in the struct itself |
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    module::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Implements `Tree` and `IntoTree` for a struct whose fields are trees. The name of a field is the
/// name of its part of the tree; the fields of a tuple struct are called `0`, `1`, …
///
/// | attribute | effect |
/// | --- | --- |
/// | `#[tree(skip)]` | the field does not belong to the tree: it is cloned |
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    tree::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
