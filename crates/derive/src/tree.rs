//! The implementation of `Tree`.

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Field, Index};

use crate::generics::{note_identifiers, with_bound};
use crate::paths::path_of;

/// The whole `impl Tree for …` and `impl IntoTree for …`.
pub(crate) fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let tensor = path_of("fulmen-tensor", "tensor");
    let Data::Struct(data) = &input.data else {
        let message =
            "only a struct can be a Tree, because all trees of a type have the same fields";
        return Err(syn::Error::new_spanned(&input.ident, message));
    };
    let mut mentioned = HashSet::new();
    let mut fields = Vec::new();
    let mut names = Vec::new();
    for (i, field) in data.fields.iter().enumerate() {
        let member = match &field.ident {
            Some(name) => name.to_token_stream(),
            None => Index::from(i).to_token_stream(),
        };
        if is_skipped(field)? {
            fields.push(quote!(#member: ::core::clone::Clone::clone(&self.#member)));
            continue;
        }
        note_identifiers(field.ty.to_token_stream(), &mut mentioned);
        fields.push(quote!(#member: #tensor::Tree::map_tensors(&self.#member, f)));
        // `r#type` is the field `type`.
        let name = match &field.ident {
            Some(name) => name.unraw().to_string(),
            None => i.to_string(),
        };
        names.push(quote!(#tensor::names_within(#name, &self.#member)));
    }
    let generics = with_bound(&input.generics, &mentioned, &quote!(#tensor::Tree))?;
    let name = &input.ident;
    let (parameters, arguments, bounds) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters #tensor::Tree for #name #arguments #bounds {
            fn map_tensors(
                &self,
                f: &mut dyn ::core::ops::FnMut(&#tensor::Tensor) -> #tensor::Tensor,
            ) -> Self {
                let _ = &f;
                Self { #(#fields),* }
            }
            fn names(&self) -> ::std::vec::Vec<::std::string::String> {
                let lists: ::std::vec::Vec<::std::vec::Vec<::std::string::String>> =
                    ::std::vec![#(#names),*];
                lists.concat()
            }
        }

        #[automatically_derived]
        impl #parameters #tensor::IntoTree for #name #arguments #bounds {
            type Tree = Self;
            fn into_tree(self) -> Self {
                self
            }
        }
    })
}

/// Whether a field has the attribute `#[tree(skip)]`.
fn is_skipped(field: &Field) -> syn::Result<bool> {
    let mut skipped = false;
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("tree")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("skip") {
                return Err(meta.error("expected `skip`"));
            }
            if skipped {
                return Err(syn::Error::new(meta.path.span(), "a field takes one `skip`"));
            }
            skipped = true;
            Ok(())
        })?;
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn only_structs_and_known_attributes_are_accepted() {
        let message = |input: DeriveInput| expand(&input).unwrap_err().to_string();
        assert!(
            message(parse_quote!(
                enum E {
                    A,
                }
            ))
            .contains("only a struct")
        );
        assert!(
            message(parse_quote!(
                struct S {
                    #[tree(ignore)]
                    a: A,
                }
            ))
            .contains("expected `skip`")
        );
        assert!(
            message(parse_quote!(
                struct S {
                    #[tree(skip, skip)]
                    a: A,
                }
            ))
            .contains("one `skip`")
        );
        assert!(is_skipped(&parse_quote!(#[tree(skip)] a: A)).unwrap());
        assert!(!is_skipped(&parse_quote!(a: A)).unwrap());
    }
}
