//! The crates that generated code names.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::Ident;

/// The path of a crate of Fulmen in the deriving crate: its own dependency, or the `module` of
/// `fulmen`.
pub(crate) fn path_of(package: &str, module: &str) -> TokenStream {
    let named = |name: &str| Ident::new(name, Span::call_site());
    let module = named(module);
    let own_name = named(&package.replace('-', "_"));
    // All these crates name themselves (`extern crate self`), so that their own tests and examples
    // find the same path.
    match (crate_name(package), crate_name("fulmen")) {
        (Ok(FoundCrate::Name(name)), _) => {
            let name = named(&name);
            quote!(::#name)
        }
        (Ok(FoundCrate::Itself), _) | (Err(_), Err(_)) => quote!(::#own_name),
        (Err(_), Ok(FoundCrate::Name(name))) => {
            let name = named(&name);
            quote!(::#name::#module)
        }
        (Err(_), Ok(FoundCrate::Itself)) => quote!(::fulmen::#module),
    }
}
