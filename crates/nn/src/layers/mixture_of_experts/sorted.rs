//! Experts without a capacity: the selected experts of all tokens are sorted by expert and cut into
//! blocks of rows of one expert each. A loop computes one block at a time and adds its rows to the
//! outputs of their tokens. So no product is computed for an expert that a token did not select,
//! except in the rest of each expert's last block, and no token is dropped.
//!
//! The number of blocks is known in advance, up to one for each expert. If the experts are split
//! over devices, one device can have all tokens. So there the loop has as many steps as it needs for
//! tokens that are evenly split; a second loop does what is left, until the last device is done.
//!
//! The backward pass computes the products within a block again, and adds up gradients in f32. It
//! uses only operations of XLA, so it runs on every platform.

use fulmen_tensor::internal::{add_rows, take_rows};
use fulmen_tensor::{
    DType, Refusal, Sharding, Tensor, autocast, custom_gradient, grad, scan, while_loop,
};

use super::{Activation, ExpertWeights, Routing};
use crate::axes::{
    has_constraints, joined_sharding, parts_of_axes, sharding_in_force, split, without_rule,
};
use crate::precision::wide;

/// The largest block, unless its size is set.
const LARGEST_BLOCK: usize = 512;

/// The products of a block of rows.
const PRODUCTS: [&str; 2] = ["...bd,...id->...bi", "...bi,...di->...bd"];

/// How tokens `[batch, length, …]` are cut into parts, one for each device that has other ones.
struct Cut {
    batch: usize,
    length: usize,
    groups: usize,
    chunks: usize,
}

impl Cut {
    /// `[batch, length, width]` to `[groups, chunks, tokens, width]`.
    fn apply(&self, x: &Tensor) -> Tensor {
        let Cut { batch, length, groups, chunks } = *self;
        let width = x.size(-1);
        x.reshape([groups, batch / groups, chunks, length / chunks, width])
            .transpose(1, 2)
            .reshape([groups, chunks, batch / groups * (length / chunks), width])
    }

    /// The inverse of [`Cut::apply`].
    fn undo(&self, x: &Tensor) -> Tensor {
        let Cut { batch, length, groups, chunks } = *self;
        let width = x.size(-1);
        let parts = x.reshape([groups, chunks, batch / groups, length / chunks, width]);
        parts.transpose(1, 2).reshape([batch, length, width])
    }
}

/// The outputs for tokens `[…, features]`.
pub(super) fn forward(
    x: &Tensor,
    routing: &Routing,
    weights: &ExpertWeights,
    block_size: Option<usize>,
) -> Result<Tensor, Refusal> {
    let shape = x.shape().to_vec();
    let [groups, chunks, shards] = parts_of_axes(["batch", "length", "expert"]);
    let chunks = if x.rank() == 3 { chunks } else { 1 };
    let batch = shape[0];
    let length = shape[1..x.rank() - 1].iter().product();
    if shape.iter().product::<usize>() == 0 {
        return Ok(x.zeros_like());
    }
    if !has_constraints() && !batch.is_multiple_of(groups) {
        return without_rule("batch", || forward(x, routing, weights, block_size));
    }
    let tokens = x.reshape([batch, length, x.size(-1)]);
    let names = [Some("batch"), (x.rank() == 3).then_some("length"), None];
    sharding_in_force(&names, tokens.shape())?;
    sharding_in_force(&[Some("expert"), None, None], weights.gate.shape())?;
    let cut = Cut { batch, length, groups, chunks };
    let top_k = routing.experts.size(-1);
    let [selected, factors] = [&routing.experts, &routing.weights]
        .map(|x| cut.apply(&x.reshape([batch, length, top_k])).flatten(-2, -1));
    let tokens = cut.apply(&tokens);
    let local_experts = weights.count() / shards;
    let rows = selected.size(-1);
    let average = rows / weights.count() / 4;
    let block = block_size.unwrap_or_else(|| (1 << average.max(1).ilog2()).clamp(8, LARGEST_BLOCK));
    let block = block.min(rows);
    let blocks = Blocks { rows, top_k, block, local_experts, shards };
    let plan = blocks.plan(&selected, &factors);
    // One element for each device, and one axis for them.
    let joined = |x: Tensor, names: &[Option<&str>]| {
        let sizes = x.shape()[3..].to_vec();
        let parts = x.broadcast_to([&[groups, shards, chunks], &sizes[..]].concat());
        let parts = split(&parts, &[&LEAD.map(Some)[..], names].concat())?;
        let all = parts.reshape([&[groups * shards * chunks], &sizes[..]].concat());
        Ok::<_, Refusal>(with(all, &joined_sharding(&LEAD, names)))
    };
    let [embed, mlp] = [Some("embed"), Some("mlp")];
    let input = joined(tokens.unsqueeze(1), &[None, embed])?;
    let by_shard = |w: &Tensor, names: [Option<&str>; 2]| {
        let sizes = [1, shards, 1, local_experts, w.size(1), w.size(2)];
        joined(w.reshape(sizes), &[&[None], &names[..]].concat())
    };
    let gate = by_shard(&weights.gate, [mlp, embed])?;
    let up = by_shard(&weights.up, [mlp, embed])?;
    let down = by_shard(&weights.down, [embed, mlp])?;
    let of = |names: &[Option<&str>]| joined_sharding(&LEAD, names);
    let shardings = Shardings {
        rows: of(&[None, embed]),
        hidden: of(&[None, mlp]),
        inner: of(&[mlp, embed]),
        outer: of(&[embed, mlp]),
        all_inner: of(&[None, mlp, embed]),
        all_outer: of(&[None, embed, mlp]),
    };
    let work = Loop {
        steps: blocks.even_steps(),
        has_rest: shards > 1,
        activation: weights.activation.clone(),
        shardings,
    };
    let y = work.run(&input, [gate, up, down], &plan);
    let parts = y.reshape([&[groups, shards, chunks], &y.shape()[1..]].concat());
    let names = [&LEAD.map(Some)[..], &[None, embed]].concat();
    let sum = split(&parts, &names)?.sum(1);
    Ok(cut.undo(&sum).reshape(&shape[..]).to_dtype(x.dtype()))
}

/// The axes that the first axis of all values in the loop joins.
const LEAD: [&str; 3] = ["batch", "expert", "length"];

/// The sizes of the blocks.
struct Blocks {
    /// The selected experts of the tokens of one part.
    rows: usize,
    top_k: usize,
    /// The rows of a block.
    block: usize,
    /// The experts of one device, and the number of such parts.
    local_experts: usize,
    shards: usize,
}

/// What each step computes. The first axis is the steps, the second that of [`LEAD`].
struct Plan {
    /// The token of each row, i32 `[steps, parts, block]`; the number of tokens if there is none.
    tokens: Tensor,
    /// The expert, i32 `[steps, parts, 1]`.
    experts: Tensor,
    /// The factor of each row, `[steps, parts, block]`.
    factors: Tensor,
    /// The number of steps of the device that has most, an i32 scalar.
    total: Tensor,
}

impl Blocks {
    /// The largest number of blocks of this many rows.
    fn steps(&self, rows: usize) -> usize {
        let experts = self.local_experts.min(rows);
        (rows + experts * (self.block - 1)) / self.block
    }

    /// The number of steps if each device has the same number of rows.
    fn even_steps(&self) -> usize {
        self.steps(self.rows.div_ceil(self.shards)).min(self.steps(self.rows))
    }

    /// The steps for the selected experts `[groups, chunks, rows]` and their factors.
    fn plan(&self, selected: &Tensor, factors: &Tensor) -> Plan {
        let Blocks { rows, top_k, block, local_experts, shards } = *self;
        let steps = self.steps(rows);
        let first = Tensor::arange(DType::I32, shards) * local_experts as f64;
        let local = selected.unsqueeze(1) - first.reshape([shards, 1, 1]);
        let all = |x: Tensor| with(x.flatten(0, 2), &joined_sharding(&LEAD, &[None]));
        let factors = all(factors.unsqueeze(1).broadcast_to(local.shape()));
        let local = all(local);
        // Those of other devices are sorted to the end.
        let is_local = local.ge(0.0).and(local.lt(local_experts as f64));
        let local = is_local.select(&local, &(local.zeros_like() + local_experts as f64));
        let order = local.argsort(-1, false).to_dtype(DType::I32);
        let counts = local.one_hot(local_experts).to_dtype(DType::I32).sum(-2);
        let begins = counts.cumsum(-1) - &counts;
        let blocks = (&counts + (block - 1) as f64) / (block as f64);
        let ends = blocks.cumsum(-1);
        let step = Tensor::arange(DType::I32, steps);
        let expert = ends.unsqueeze(-2).le(step.unsqueeze(-1)).to_dtype(DType::I32).sum(-1);
        let expert = expert.minimum((local_experts - 1) as f64);
        let of_expert = |x: &Tensor| take_rows(x, &expert).unsqueeze(-1);
        let number = &step - take_rows(&(&ends - &blocks), &expert);
        let within = number.unsqueeze(-1) * block as f64 + Tensor::arange(DType::I32, block);
        let is_used = within.lt(of_expert(&counts));
        let at = of_expert(&begins) + &within;
        let list = |x: &Tensor| x.flatten(-2, -1);
        let beyond = at.zeros_like() + rows as f64;
        let at = list(&is_used.select(&at, &beyond));
        let source = take_rows(&order, &at);
        let is_used = list(&is_used);
        let token = &source / (top_k as f64);
        let none = token.zeros_like() + (rows / top_k) as f64;
        let none_at = source.zeros_like() + rows as f64;
        let factors = take_rows(&factors, &is_used.select(&source, &none_at));
        let by_step = |x: &Tensor| {
            let by_step = x.unflatten(-1, &[steps as isize, (x.size(-1) / steps) as isize]);
            with(by_step, &joined_sharding(&LEAD, &[None, None])).movedim(1, 0)
        };
        Plan {
            tokens: by_step(&is_used.select(&token, &none)),
            experts: by_step(&expert),
            factors: by_step(&factors),
            total: ends.max([0, 1]),
        }
    }
}

/// How values in a loop are split over a mesh.
#[derive(Clone)]
struct Shardings {
    /// Rows of tokens, and their values within experts.
    rows: Option<Sharding>,
    hidden: Option<Sharding>,
    /// The weights of one expert to inner features and back, and those of all experts.
    inner: Option<Sharding>,
    outer: Option<Sharding>,
    all_inner: Option<Sharding>,
    all_outer: Option<Sharding>,
}

/// The loop over blocks.
#[derive(Clone)]
struct Loop {
    /// The number of steps, if none is left for the second loop.
    steps: usize,
    has_rest: bool,
    activation: Activation,
    shardings: Shardings,
}

/// One step, of [`Plan`].
struct Step {
    number: Tensor,
    tokens: Tensor,
    expert: Tensor,
    factors: Tensor,
}

fn with(x: Tensor, sharding: &Option<Sharding>) -> Tensor {
    match sharding {
        Some(sharding) => x.with_sharding(sharding),
        None => x,
    }
}

/// The starts of a slice along the first axis.
fn starts(x: &Tensor, first: &Tensor) -> Vec<Tensor> {
    let mut starts = vec![Tensor::zeros(DType::I32, []); x.rank()];
    starts[0] = first.clone();
    starts
}

impl Loop {
    /// The outputs `[…, tokens, features]` in the dtype of sums.
    fn run(self, x: &Tensor, weights: [Tensor; 3], plan: &Plan) -> Tensor {
        let Plan { tokens, experts, factors, total } = plan;
        let [gate, up, down] = &weights;
        let inputs = [x, gate, up, down, factors, tokens, experts, total];
        let work = self.clone();
        custom_gradient(
            &inputs,
            |inputs| autocast(None, || self.forward(&inputs)),
            move |inputs, _, of_output| autocast(None, || work.backward(inputs, of_output)),
        )
    }

    /// Repeats `body` for all blocks.
    fn repeat(
        &self,
        inputs: &[Tensor],
        init: Vec<Tensor>,
        body: impl Fn(&[Tensor], &Step) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let step = |sums: &[Tensor], number: &Tensor| {
            let at = |x: &Tensor| {
                let sizes = [&[1], &x.shape()[1..]].concat();
                x.dynamic_slice(&starts(x, number), &sizes).squeeze(0)
            };
            let [factors, tokens, expert] = [&inputs[4], &inputs[5], &inputs[6]].map(at);
            body(sums, &Step { number: number.clone(), tokens, expert, factors })
        };
        let numbers = Tensor::arange(DType::I32, self.steps);
        let (sums, ()) = scan(init, numbers, |sums, number| (step(&sums, &number), ()));
        if !self.has_rest {
            return sums;
        }
        let first = Tensor::full(DType::I32, [], self.steps as f64);
        let (_, sums) = while_loop(
            (first, sums),
            |(number, _)| number.lt(&inputs[7]),
            |(number, sums)| (&number + 1.0, step(&sums, &number)),
        );
        sums
    }

    /// The rows of a block, the weights of its expert, and their outputs.
    fn block(&self, inputs: &[Tensor], step: &Step) -> (Vec<Tensor>, Tensor) {
        let Shardings { rows: of_rows, hidden: of_hidden, inner, outer, .. } = &self.shardings;
        let rows = with(take_rows(&inputs[0], &step.tokens), of_rows);
        let [gate, up, down] = [(1, inner), (2, inner), (3, outer)]
            .map(|(i, sharding)| with(take_rows(&inputs[i], &step.expert).squeeze(1), sharding));
        let activation = self.activation.clone();
        let weights = ExpertWeights { gate, up, down, activation };
        // Before the last product, so that the gradient of the factors needs no output.
        let factors = step.factors.unsqueeze(-1);
        let scale = |hidden: Tensor| with(&hidden * factors.to_dtype(hidden.dtype()), of_hidden);
        let output = with(wide(&weights.products(&rows, PRODUCTS, scale)), of_rows);
        let ExpertWeights { gate, up, down, .. } = weights;
        (vec![rows, gate, up, down, step.factors.clone()], output)
    }

    fn forward(&self, inputs: &[Tensor]) -> Tensor {
        let tokens = &self.shardings.rows;
        let zeros = with(wide(&inputs[0]).zeros_like(), tokens);
        let sums = self.repeat(inputs, vec![zeros], |sums, step| {
            let (_, output) = self.block(inputs, step);
            vec![with(add_rows(&sums[0], &step.tokens, &output), tokens)]
        });
        sums[0].clone()
    }

    /// The cotangents of all inputs.
    fn backward(&self, inputs: &[Tensor], of_output: &Tensor) -> Vec<Tensor> {
        let Shardings { rows, all_inner: inner, all_outer: outer, .. } = &self.shardings;
        let shardings = [rows, inner, inner, outer, &None];
        let sharded = |sums: Vec<Tensor>| -> Vec<Tensor> {
            sums.into_iter().zip(shardings).map(|(sum, sharding)| with(sum, sharding)).collect()
        };
        let zeros = inputs[..5].iter().map(|x| wide(x).zeros_like()).collect();
        let sums = self.repeat(inputs, sharded(zeros), |sums, step| {
            let (of, output) = self.block(inputs, step);
            let of_rows = with(take_rows(of_output, &step.tokens), rows);
            let gradients = grad(&(output * of_rows).sum_all(), &of);
            let mut next = vec![add_rows(&sums[0], &step.tokens, &wide(&gradients[0]))];
            for i in 1..4 {
                next.push(add_rows(&sums[i], &step.expert, &wide(&gradients[i]).unsqueeze(1)));
            }
            let of_factors = wide(&gradients[4]).unsqueeze(0);
            let at = starts(&sums[4], &step.number);
            next.push(sums[4].dynamic_update_slice(&of_factors, &at));
            sharded(next)
        });
        let of_numbers = sums.iter().zip(inputs).map(|(sum, input)| sum.to_dtype(input.dtype()));
        of_numbers.chain(inputs[5..].iter().map(Tensor::zeros_like)).collect()
    }
}
