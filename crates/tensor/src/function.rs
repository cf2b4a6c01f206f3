//! [`Function`]: an expression with inputs, ready to be compiled.

use crate::lower::{Lowered, lower};
use crate::{Error, Result, Tensor, TensorType};

/// An expression with inputs: results computed from parameters.
///
/// ```
/// use fulmen_tensor::{DType, Function, TensorType};
///
/// let square = Function::trace("square", &[TensorType::new(DType::F32, [4])], |x| vec![&x[0] * &x[0]]);
/// assert!(square.stablehlo()?.contains("stablehlo.multiply"));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub struct Function {
    name: String,
    parameters: Vec<Tensor>,
    results: Vec<Tensor>,
    aliases: Vec<Option<usize>>,
}

impl Function {
    /// A function of `parameters`, which are different placeholders (else it does not compile), to `results`. The name shows in profiles and messages.
    pub fn new(name: impl Into<String>, parameters: Vec<Tensor>, results: Vec<Tensor>) -> Function {
        let aliases = vec![None; parameters.len()];
        Function { name: name.into(), parameters, results, aliases }
    }

    /// Calls `f` once with a placeholder of each type and records what it returns.
    #[track_caller]
    pub fn trace(
        name: impl Into<String>,
        parameters: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Function {
        // No closure: the placeholders would carry its line, not the caller's.
        let mut placeholders = Vec::with_capacity(parameters.len());
        for (i, ty) in parameters.iter().enumerate() {
            placeholders.push(Tensor::placeholder(format!("input {i}"), ty.clone()));
        }
        let results = f(&placeholders);
        Function::new(name, placeholders, results)
    }

    /// Donates parameter number `parameter`: its memory becomes that of result number `result`, and whoever calls the
    /// compiled function gives the buffer away.
    ///
    /// # Errors
    /// When there is no such parameter or result, their types differ, or one of them is taken already.
    pub fn donate(mut self, parameter: usize, result: usize) -> Result<Function> {
        let (Some(p), Some(r)) = (self.parameters.get(parameter), self.results.get(result)) else {
            return Err(Error::usage(format!(
                "{}: cannot donate parameter {parameter} to result {result}: there are {} parameters and {} results",
                self.name,
                self.parameters.len(),
                self.results.len()
            )));
        };
        r.check()?;
        if p.ty() != r.ty() {
            return Err(Error::usage(format!(
                "{}: cannot donate parameter {parameter}, {}, to result {result}, {}: the types differ",
                self.name,
                p.ty(),
                r.ty()
            )));
        }
        if self.aliases[parameter].is_some() || self.aliases.contains(&Some(result)) {
            return Err(Error::usage(format!(
                "{}: parameter {parameter} or result {result} already takes part in a donation",
                self.name
            )));
        }
        self.aliases[parameter] = Some(result);
        Ok(self)
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// The results.
    pub fn results(&self) -> &[Tensor] {
        &self.results
    }

    /// The result that each parameter is donated to.
    pub(crate) fn aliases(&self) -> &[Option<usize>] {
        &self.aliases
    }

    /// The program as StableHLO text, each statement with the line of the user's code that recorded it.
    ///
    /// # Errors
    /// The first fault among the results; a placeholder that is no parameter.
    pub fn stablehlo(&self) -> Result<String> {
        Ok(self.lower()?.text)
    }

    pub(crate) fn lower(&self) -> Result<Lowered> {
        lower(&self.name, &self.parameters, &self.aliases, &self.results)
    }
}
