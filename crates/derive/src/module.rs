//! The implementation of `Module`.

mod attributes;

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Fields, Ident, Index};

use self::attributes::{Treatment, treatment};
use crate::generics::{note_identifiers, with_bound};
use crate::paths::path_of;

/// The whole `impl Module for …`.
pub(crate) fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let nn = path_of("fulmen-nn", "nn");
    let mut mentioned = HashSet::new();
    let body = match &input.data {
        Data::Struct(data) => {
            let access = |member: TokenStream| quote!(&self.#member);
            let members = data.fields.iter().enumerate().map(|(i, field)| match &field.ident {
                Some(name) => access(name.to_token_stream()),
                None => access(Index::from(i).to_token_stream()),
            });
            visits(&data.fields, members.collect(), false, &mut mentioned)?
        }
        Data::Enum(data) => {
            let mut arms = Vec::new();
            for variant in &data.variants {
                let bindings: Vec<Ident> =
                    (0..variant.fields.len()).map(|i| format_ident!("field_{i}")).collect();
                let members = bindings.iter().map(ToTokens::to_token_stream).collect();
                let visits = visits(&variant.fields, members, true, &mut mentioned)?;
                let name = &variant.ident;
                let pattern = match &variant.fields {
                    Fields::Named(fields) => {
                        let names = fields.named.iter().map(|f| &f.ident);
                        quote!({ #(#names: #bindings),* })
                    }
                    Fields::Unnamed(_) => quote!((#(#bindings),*)),
                    Fields::Unit => quote!(),
                };
                arms.push(quote!(Self::#name #pattern => { #(let _ = #bindings;)* #visits }));
            }
            // An enum without variants has no value; the compiler accepts an empty match only on
            // `*self`.
            if arms.is_empty() { quote!(match *self {}) } else { quote!(match self { #(#arms)* }) }
        }
        Data::Union(_) => {
            let message = "a union cannot be a Module, because its active field is unknown";
            return Err(syn::Error::new_spanned(&input.ident, message));
        }
    };

    let generics = with_bound(&input.generics, &mentioned, &quote!(#nn::Module))?;
    let name = &input.ident;
    let (parameters, arguments, bounds) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters #nn::Module for #name #arguments #bounds {
            fn visit(&self, visit: &mut #nn::Visit<'_>) {
                let _ = &visit;
                #body
            }
        }
    })
}

/// The statements that visit `fields`; `members` gives a reference to each. Records which type
/// parameters the visited fields may mention.
fn visits(
    fields: &Fields,
    members: Vec<TokenStream>,
    variant: bool,
    mentioned: &mut HashSet<String>,
) -> syn::Result<TokenStream> {
    let mut statements = TokenStream::new();
    let wraps_one = variant && matches!(fields, Fields::Unnamed(_)) && fields.len() == 1;
    for (i, (field, member)) in fields.iter().zip(members).enumerate() {
        let mut treatment = treatment(field)?;
        if treatment == Treatment::Named && wraps_one {
            treatment = Treatment::Flattened;
        }
        if treatment != Treatment::Skipped {
            note_identifiers(field.ty.to_token_stream(), mentioned);
        }
        let name = match treatment {
            Treatment::Skipped => continue,
            Treatment::Flattened => {
                statements.extend(quote!(visit.flatten(#member);));
                continue;
            }
            Treatment::Renamed(name) => name,
            // `r#type` is the field `type`.
            Treatment::Named => {
                field.ident.as_ref().map_or_else(|| i.to_string(), |name| name.unraw().to_string())
            }
        };
        statements.extend(quote!(visit.child(#name, #member);));
    }
    Ok(statements)
}
