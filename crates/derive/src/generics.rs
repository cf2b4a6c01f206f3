//! Bounds of the type parameters that fields mention.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::Generics;

/// The generics with a bound on each type parameter whose name is among `mentioned`.
pub(crate) fn with_bound(
    generics: &Generics,
    mentioned: &HashSet<String>,
    bound: &TokenStream,
) -> syn::Result<Generics> {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        if mentioned.contains(&parameter.ident.to_string()) {
            parameter.bounds.push(syn::parse2(bound.clone())?);
        }
    }
    Ok(generics)
}

/// Adds the identifiers in a type.
pub(crate) fn note_identifiers(tokens: TokenStream, into: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                into.insert(name.to_string());
            }
            TokenTree::Group(group) => note_identifiers(group.stream(), into),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}
