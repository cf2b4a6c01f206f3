//! Functions with a user-defined derivative: [`custom_gradient`].

use std::fmt;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use super::{borrowed, types};
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, Vjp};
use crate::region::Region;
use crate::scope::{Library, Refusal, Scope};
use crate::tensor::{all_live, next_id};
use crate::{IntoTree, Tensor, TensorType, Tree};

type Backward = dyn Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Tensor> + Send + Sync;

/// The recorded forward expression. Only its first `inputs` parameters get cotangents.
struct CustomGradient {
    region: Arc<Region>,
    inputs: usize,
    backward: Box<Backward>,
    /// The library whose code `backward` is, if it is not the user's.
    library: Option<Library>,
}

impl Operation for CustomGradient {
    fn name(&self) -> &'static str {
        "custom_gradient"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.region.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        self.cotangents(cx).unwrap_or_else(|refusal| {
            vec![Some(Tensor::refused("custom_gradient", refusal)); cx.inputs.len()]
        })
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Inlined(&self.region)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Never called: a program contains the body instead.
        format!("stablehlo.optimization_barrier {} : {}", cx.operands(), cx.result().stablehlo())
    }
}

impl CustomGradient {
    fn cotangents(&self, cx: &Vjp<'_>) -> Result<Vec<Option<Tensor>>, Refusal> {
        if let Some(captured) = (self.inputs..cx.inputs.len()).find(|&i| cx.needed[i]) {
            return Err(format!(
                "the forward function uses a tensor from outside, {}, and its gradient is needed, which the backward \
                 function does not return; make the tensor one of the inputs",
                cx.inputs[captured].ty()
            )
            .into());
        }
        let cotangents: Vec<Tensor> = (cx.outputs.iter().zip(cx.cotangents))
            .map(|(output, cotangent)| cotangent.clone().unwrap_or_else(|| output.zeros_like()))
            .collect();
        let inputs = &cx.inputs[..self.inputs];
        let returned = {
            let _outside = Scope::leave_to(self.library);
            (self.backward)(inputs, cx.outputs, &cotangents)
        };
        all_live(&returned)?;
        if returned.len() != inputs.len() {
            return Err(format!(
                "the backward function returns {} for {}; it must return one for each input",
                quantity(returned.len(), "cotangent"),
                quantity(inputs.len(), "input")
            )
            .into());
        }
        if let Some(i) =
            (0..inputs.len()).find(|&i| cx.needed[i] && returned[i].ty() != inputs[i].ty())
        {
            return Err(format!(
                "the backward function returns {} for input {i}, which is {}; a cotangent must have the type of its \
                 input",
                returned[i].ty(),
                inputs[i].ty()
            )
            .into());
        }
        let mut all: Vec<Option<Tensor>> = returned.into_iter().map(Some).collect();
        all.resize(cx.inputs.len(), None);
        Ok(all)
    }
}

impl fmt::Debug for CustomGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom_gradient {:p}", Arc::as_ptr(&self.region))
    }
}

/// Computes `forward(inputs)` with a user-defined derivative (PyTorch's `torch.autograd.Function`,
/// JAX's `jax.custom_vjp`). `backward(inputs, outputs, cotangents)` returns one cotangent for each
/// input, of the type of that input. The cotangents of integer and boolean inputs are ignored. The
/// inputs and the outputs are any [`Tree`](trait@crate::Tree); cotangents have the tree of what
/// they belong to.
///
/// `forward` is called once, with the inputs. `backward` is called whenever a gradient is taken. It
/// must use the values that it gets as arguments; tensors from outside count as constants.
///
/// The gradient is poisoned if the cotangents do not fit the inputs. It is also poisoned with
/// respect to a tensor that `forward` uses but that is not among `inputs`.
///
/// ```
/// use fulmen_tensor::{Tensor, custom_gradient, grad};
///
/// // A step that passes gradients straight through.
/// let x = Tensor::from_slice(&[-1.5f32, 0.5], [2]);
/// let y = custom_gradient(&x, |x| x.sign(), |_, _, cotangent| cotangent.clone());
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [-1.0, 1.0]);
/// assert_eq!(grad(&y.sum_all(), &[&x])[0].eval()?.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn custom_gradient<I, T>(
    inputs: I,
    forward: impl FnOnce(I::Tree) -> T,
    backward: impl Fn(&I::Tree, &T, &T) -> I::Tree + Send + Sync + 'static,
) -> T
where
    I: IntoTree<Tree: Send + Sync + 'static>,
    T: Tree + Send + Sync + 'static,
{
    let _scope = Scope::open();
    let inputs = inputs.into_tree();
    let outside = inputs.flatten();
    let start = next_id();
    let results = Scope::outside(|| forward(inputs.unflatten(outside.iter().cloned())));
    let results_of_body = results.flatten();
    if results_of_body.is_empty() || all_live(&results_of_body).is_err() {
        return results;
    }
    let (region, all) =
        Region::since("custom_gradient", start, &borrowed(&outside), &results_of_body);
    let tree = results.unflatten([]);
    let backward = move |inputs_now: &[Tensor], outputs: &[Tensor], cotangents: &[Tensor]| {
        let inputs = inputs.unflatten(inputs_now.iter().cloned());
        let outputs = tree.unflatten(outputs.iter().cloned());
        let cotangents = tree.unflatten(cotangents.iter().cloned());
        backward(&inputs, &outputs, &cotangents).flatten()
    };
    let operation = CustomGradient {
        region: Arc::new(region),
        inputs: outside.len(),
        backward: Box::new(backward),
        library: Scope::library(),
    };
    results.unflatten(Tensor::apply_all(operation, &borrowed(&all)))
}
