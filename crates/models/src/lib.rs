//! The models of the field, with the parameter names of the Python library that people load them from.
//!
//! Each family is one file and one feature:
//!
//! | module | models | names of |
//! | --- | --- | --- |

#[cfg(test)]
mod reference;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
