//! Parses `#[module(…)]` on a field.

use syn::spanned::Spanned;

/// How a field is visited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Under its own name.
    Named,
    /// Under another name.
    Renamed(String),
    /// Its contents are visited as part of the containing struct.
    Flattened,
    /// Not visited.
    Skipped,
}

/// Parses a field's attributes.
///
/// # Errors
/// An unknown word, a name that would break dotted paths, or two contradictory attributes; the
/// error points at the attribute.
pub(crate) fn treatment(field: &syn::Field) -> syn::Result<Treatment> {
    let mut treatment = Treatment::Named;
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            let wish = if meta.path.is_ident("skip") {
                Treatment::Skipped
            } else if meta.path.is_ident("flatten") {
                Treatment::Flattened
            } else if meta.path.is_ident("rename") {
                let name: syn::LitStr = meta.value()?.parse()?;
                if name.value().is_empty() || name.value().contains('.') {
                    let message =
                        "a name must not be empty or contain a dot: dots separate the names of nested modules";
                    return Err(syn::Error::new(name.span(), message));
                }
                Treatment::Renamed(name.value())
            } else {
                return Err(meta.error("expected `skip`, `flatten` or `rename = \"name\"`"));
            };
            if treatment != Treatment::Named {
                return Err(syn::Error::new(meta.path.span(), "a field takes one of `skip`, `flatten` and `rename`"));
            }
            treatment = wish;
            Ok(())
        })?;
    }
    Ok(treatment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn each_word_is_understood() {
        let read = |field: syn::Field| treatment(&field);
        assert_eq!(read(parse_quote!(a: A)).unwrap(), Treatment::Named);
        assert_eq!(read(parse_quote!(#[module(skip)] a: A)).unwrap(), Treatment::Skipped);
        assert_eq!(read(parse_quote!(#[module(flatten)] a: A)).unwrap(), Treatment::Flattened);
        assert_eq!(
            read(parse_quote!(#[module(rename = "b")] a: A)).unwrap(),
            Treatment::Renamed("b".into())
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let message = |field: syn::Field| treatment(&field).unwrap_err().to_string();
        assert!(message(parse_quote!(#[module(ignore)] a: A)).contains("expected `skip`"));
        assert!(message(parse_quote!(#[module(rename = "a.b")] a: A)).contains("contain a dot"));
        assert!(message(parse_quote!(#[module(skip, flatten)] a: A)).contains("one of"));
    }
}
