//! Branches: [`cond`] and [`switch`]. The operation and its derivative are in `branches.rs`.

use fulmen_durable::messages::quantity;

use super::borrowed;
use super::branches::close;
use crate::region::{Region, parameters};
use crate::scope::{Refusal, Scope};
use crate::tensor::{all_live, next_id};
use crate::tree::label;
use crate::{AsTensor, DType, IntoTree, Tensor, Tree};

/// A traced branch: the id of its first node, its parameters, and its results with their names.
struct TracedBranch {
    start: u64,
    parameters: Vec<Tensor>,
    results: Vec<Tensor>,
    names: Vec<String>,
}

/// Traces a branch, and returns its results as a tree, too. Everything that it records belongs to
/// the branch, even where it uses no operand: it is computed only if the branch runs.
fn trace<O: Tree, T: Tree>(
    method: &'static str,
    operands: &O,
    branch: impl FnOnce(O) -> T,
) -> (TracedBranch, T) {
    let start = next_id();
    let outside = operands.flatten();
    let parameters = parameters(method, "operand", outside.iter().map(Tensor::ty));
    let tree = Scope::outside(|| branch(operands.unflatten(parameters.iter().cloned())));
    let traced = TracedBranch { start, parameters, results: tree.flatten(), names: tree.names() };
    (traced, tree)
}

fn choose(
    method: &'static str,
    selector: &Tensor,
    operands: &[Tensor],
    traced: Vec<TracedBranch>,
) -> Vec<Tensor> {
    let Some(TracedBranch { results: first, names, .. }) = traced.first() else {
        return Vec::new();
    };
    let first = first.clone();
    let names = names.clone();
    let count = first.len();
    Tensor::record_many(method, count, || {
        let mut closed = Vec::new();
        for (n, branch) in traced.into_iter().enumerate() {
            let TracedBranch { start, parameters, results, names: own_names } = branch;
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
            if own_names != names {
                return Err(format!(
                    "branch 0 returns {} and branch {n} returns {}; all branches must return the same results",
                    names.join(", "),
                    own_names.join(", ")
                )
                .into());
            }
            if let Some(i) = (0..count).find(|&i| results[i].ty() != first[i].ty()) {
                return Err(format!(
                    "{} is {} in branch 0 and {} in branch {n}; all branches must return the same types",
                    label("result", &names[i]),
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
        let (branches, inputs) = close(method, selector, &borrowed(operands), closed);
        Ok(branches.apply(&inputs))
    })
}

/// The tree that `branch` returns, with poisoned tensors. Only a call of `branch` reveals the tree.
fn refused<O: Tree, T: Tree>(
    method: &'static str,
    refusal: Refusal,
    operands: &O,
    branch: impl FnOnce(O) -> T,
) -> T {
    let poisoned = Tensor::refused(method, refusal);
    let poison = &mut |_: &Tensor| poisoned.clone();
    let operands = operands.map_tensors(poison);
    Scope::outside(|| branch(operands)).map_tensors(poison)
}

/// Returns the results of `on_true` if the bool scalar `pred` is true, else those of `on_false`
/// (JAX's `lax.cond`). The device evaluates `pred` and runs only one branch.
///
/// Both closures are called once, with symbolic tensors for `operands`: any
/// [`Tree`](trait@crate::Tree). They must return the same tree of results, of the same types. They
/// may use tensors from outside, and then need no operands: `()`. Gradients flow to the operands
/// and to those tensors, through the branch that ran. The backward pass recomputes that branch.
///
/// Poisoned if `pred` is not a bool scalar, or if the types of the results differ. Don't set a
/// [`Variable`](crate::Variable) in a branch: it would hold a value that exists only within the
/// branch. Return the value instead, and set the variable after the call.
///
/// ```
/// use fulmen_tensor::{Tensor, cond, grad};
///
/// let x = Tensor::scalar(3.0f32);
/// let y = cond(&x.gt(0.0), &x, |x| &x * &x, |x| -x);
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [9.0]);
/// assert_eq!(grad(&y, &[&x])[0].eval()?.to_vec::<f32>()?, [6.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cond<I: IntoTree, T: Tree>(
    pred: impl AsTensor,
    operands: I,
    on_true: impl FnOnce(I::Tree) -> T,
    on_false: impl FnOnce(I::Tree) -> T,
) -> T {
    let _scope = Scope::open();
    let pred = pred.as_tensor();
    let operands = operands.into_tree();
    let outside = operands.flatten();
    let check = || {
        all_live(std::iter::once(pred).chain(&outside))?;
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
        return refused("cond", refusal, &operands, on_true);
    }
    let (on_true, results) = trace("cond", &operands, on_true);
    let (on_false, _) = trace("cond", &operands, on_false);
    results.unflatten(choose("cond", pred, &outside, vec![on_true, on_false]))
}

/// A branch of [`switch`].
type Case<'a, O, T> = &'a dyn Fn(O) -> T;

/// Returns the results of the branch with the number `index`, an integer scalar (JAX's
/// `lax.switch`). `first` is branch 0, and `others` are branches 1 and up. An index below 0 selects
/// the first branch, an index that is too large the last. At most 128 branches are supported.
///
/// Branches, gradients and faults follow the rules of [`cond`]. The first branch is an argument of
/// its own, so that there is always one whose tree the results have.
///
/// ```
/// use fulmen_tensor::{Tensor, switch};
///
/// let x = Tensor::scalar(2.0f32);
/// let power = |n: i32| {
///     switch(Tensor::scalar(n), &x, |x| x.ones_like(), &[&|x| x, &|x| &x * &x])
/// };
/// assert_eq!(power(1).eval()?.to_vec::<f32>()?, [2.0]);
/// assert_eq!(power(9).eval()?.to_vec::<f32>()?, [4.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn switch<I: IntoTree, T: Tree>(
    index: impl AsTensor,
    operands: I,
    first: impl FnOnce(I::Tree) -> T,
    others: &[Case<'_, I::Tree, T>],
) -> T {
    let _scope = Scope::open();
    let index = index.as_tensor();
    let operands = operands.into_tree();
    let outside = operands.flatten();
    let last = others.len().min(i8::MAX as usize);
    let check = || {
        all_live(std::iter::once(index).chain(&outside))?;
        if !index.dtype().is_integer() || index.rank() != 0 {
            return Err(format!("the index must be an integer scalar, not {}", index.ty()).into());
        }
        if last != others.len() {
            let count = others.len() + 1;
            let most = last + 1;
            return Err(
                format!("there are {count} branches, but at most {most} are supported").into()
            );
        }
        Ok(())
    };
    if let Err(refusal) = check() {
        return refused("switch", refusal, &operands, first);
    }
    if others.is_empty() {
        return Scope::outside(|| first(operands));
    }
    let zero = Tensor::full(index.dtype(), [], 0.0);
    let bound = Tensor::full(index.dtype(), [], last as f64);
    let selector = index.maximum(&zero).minimum(&bound).to_dtype(DType::I32);
    let (first, results) = trace("switch", &operands, first);
    let others = others.iter().map(|branch| trace("switch", &operands, branch).0);
    let traced = std::iter::once(first).chain(others).collect();
    results.unflatten(choose("switch", &selector, &outside, traced))
}
