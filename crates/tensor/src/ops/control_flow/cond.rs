//! Branches: [`cond`] and [`switch`]. The operation and its derivative are in `branches.rs`.

use fulmen_durable::messages::quantity;

use super::branches::close;
use super::owned;
use crate::as_tensor::as_tensors;
use crate::region::{Region, parameters};
use crate::scope::{Refusal, Scope};
use crate::tensor::{all_live, next_id};
use crate::{AsTensor, DType, Tensor};

/// Traces a branch. Everything that it records belongs to the branch, even where it uses no
/// operand: it is computed only if the branch runs.
fn trace(
    method: &'static str,
    operands: &[&Tensor],
    branch: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> (u64, Vec<Tensor>, Vec<Tensor>) {
    let start = next_id();
    let parameters = parameters(method, "operand", operands.iter().map(|t| t.ty()));
    let results = Scope::outside(|| branch(&parameters));
    (start, parameters, results)
}

fn choose(
    method: &'static str,
    selector: &Tensor,
    operands: &[&Tensor],
    traced: Vec<(u64, Vec<Tensor>, Vec<Tensor>)>,
) -> Vec<Tensor> {
    let first = traced.first().map_or(Vec::new(), |(_, _, results)| results.clone());
    let count = first.len();
    Tensor::record_many(method, count, || {
        let mut closed = Vec::new();
        for (n, (start, parameters, results)) in traced.into_iter().enumerate() {
            all_live(&results)?;
            if results.len() != count {
                return Err(format!(
                    "branch 0 returns {} and branch {n} returns {}; all branches must return the same number of results, of \
                     the same types",
                    quantity(count, "result"),
                    results.len()
                )
                .into());
            }
            if let Some(i) = (0..count).find(|&i| results[i].ty() != first[i].ty()) {
                return Err(format!(
                    "result {i} is {} in branch 0 and {} in branch {n}; all branches must return the same types",
                    first[i].ty(),
                    results[i].ty()
                )
                .into());
            }
            closed.push(Region::close_since(method, start, parameters, &results));
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let (branches, inputs) = close(method, selector, operands, closed);
        Ok(branches.apply(&inputs))
    })
}

/// Poisoned results of `method`, as many as `branch` returns. Only a call of `branch` reveals their
/// number.
fn refused(
    method: &'static str,
    refusal: Refusal,
    operands: &[&Tensor],
    branch: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let poisoned = Tensor::refused(method, refusal);
    let count = Scope::outside(|| branch(&vec![poisoned.clone(); operands.len()])).len();
    vec![poisoned; count]
}

/// Returns the results of `on_true` if the bool scalar `pred` is true, else those of `on_false`
/// (JAX's `lax.cond`). The device evaluates `pred` and runs only one branch.
///
/// Both closures are called once, with symbolic tensors for `operands`. They must return the same
/// number of results, of the same types. They may use tensors from outside. Gradients flow to the
/// operands and to those tensors, through the branch that ran. The backward pass recomputes that
/// branch.
///
/// Poisoned if `pred` is not a bool scalar, or if the types of the results differ. Don't set a
/// [`Variable`](crate::Variable) in a branch: it would hold a value that exists only within the
/// branch. Return the value instead, and set the variable after the call.
///
/// ```
/// use fulmen_tensor::{Tensor, cond, grad};
///
/// let x = Tensor::scalar(3.0f32);
/// let y = &cond(&x.gt(0.0), &[&x], |x| vec![&x[0] * &x[0]], |x| vec![-&x[0]])[0];
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [9.0]);
/// assert_eq!(grad(y, &[&x])[0].eval()?.to_vec::<f32>()?, [6.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cond(
    pred: impl AsTensor,
    operands: &[impl AsTensor],
    on_true: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    on_false: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let _scope = Scope::open();
    let pred = pred.as_tensor();
    let operands = &as_tensors(operands)[..];
    let check = || {
        all_live(std::iter::once(pred).chain(operands.iter().copied()))?;
        if pred.dtype() != DType::Bool || pred.rank() != 0 {
            let ty = pred.ty();
            return Err(format!(
                "the predicate must be a bool scalar, not {ty}; make one with lt() or all()"
            )
            .into());
        }
        Ok(())
    };
    if let Err(refusal) = check() {
        return refused("cond", refusal, operands, on_true);
    }
    let traced = vec![trace("cond", operands, on_true), trace("cond", operands, on_false)];
    choose("cond", pred, operands, traced)
}

/// A branch of [`switch`].
type Case<'a> = &'a dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// Returns the results of `branches[index]` for an integer scalar `index` (JAX's `lax.switch`). An
/// index below 0 selects the first branch, an index that is too large the last. At most 128
/// branches are supported.
///
/// Branches, gradients and faults follow the rules of [`cond`].
///
/// ```
/// use fulmen_tensor::{Tensor, switch};
///
/// let x = Tensor::scalar(2.0f32);
/// let power = |n: i32| switch(&Tensor::scalar(n), &[&x], &[&|x| vec![x[0].ones_like()], &|x| vec![x[0].clone()], &|x| {
///     vec![&x[0] * &x[0]]
/// }]);
/// assert_eq!(power(1)[0].eval()?.to_vec::<f32>()?, [2.0]);
/// assert_eq!(power(9)[0].eval()?.to_vec::<f32>()?, [4.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn switch(
    index: impl AsTensor,
    operands: &[impl AsTensor],
    branches: &[Case<'_>],
) -> Vec<Tensor> {
    let _scope = Scope::open();
    let index = index.as_tensor();
    let operands = &as_tensors(operands)[..];
    let Some(&first) = branches.first() else {
        return vec![Tensor::poison("switch", "there are no branches; pass at least one")];
    };
    let last = (branches.len() - 1).min(i8::MAX as usize);
    let check = || {
        all_live(std::iter::once(index).chain(operands.iter().copied()))?;
        if !index.dtype().is_integer() || index.rank() != 0 {
            return Err(format!("the index must be an integer scalar, not {}", index.ty()).into());
        }
        if last + 1 != branches.len() {
            let count = branches.len();
            let most = last + 1;
            return Err(
                format!("there are {count} branches, but at most {most} are supported").into()
            );
        }
        Ok(())
    };
    if let Err(refusal) = check() {
        return refused("switch", refusal, operands, first);
    }
    if branches.len() == 1 {
        return Scope::outside(|| first(&owned(operands)));
    }
    let zero = Tensor::full(index.dtype(), [], 0.0);
    let bound = Tensor::full(index.dtype(), [], last as f64);
    let selector = index.maximum(&zero).minimum(&bound).to_dtype(DType::I32);
    let traced = branches.iter().map(|branch| trace("switch", operands, branch)).collect();
    choose("switch", &selector, operands, traced)
}
