//! `#[derive(Module)]`: shows a module's fields, by name, to a visitor.
//!
//! Only the macro. What a module is and what visitors do stands in `fulmen-nn`, which re-exports this.

mod attributes;
mod expand;

use proc_macro::TokenStream;

/// Implements `Module` by visiting every field under its name.
///
/// - Named fields are visited under their names, the fields of a tuple struct under `0`, `1`, …
/// - An enum visits the fields of the variant that it is. The variant's own name takes no part, and a variant that
///   wraps one value is visited as that value, so `enum Norm { Batch(BatchNorm2d), None }` in a field `bn` has
///   `bn.weight`.
/// - Every type parameter that a visited field mentions must be a `Module`.
///
/// A field is treated otherwise with an attribute:
///
/// | attribute | effect |
/// | --- | --- |
/// | `#[module(skip)]` | the field is not visited; its type need not be a `Module` |
/// | `#[module(rename = "fc")]` | the field is visited under this name |
/// | `#[module(flatten)]` | what is in the field is visited as if it were in the struct itself |
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
