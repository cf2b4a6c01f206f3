//! The common part of recurrent layers: the parameters of a stack of layers in one or two
//! directions, and how a sequence passes through it.

use fulmen_tensor::internal::{IndexRule, check_indices};
use fulmen_tensor::{DType, Refusal, Scan, Tensor};

use super::cell::{Cell, Recurrence, affine};
use crate::library::{NN, live};
use crate::{Dropout, Init, Module, Parameter, Visit};

/// The most layers. Larger numbers are rejected instead of exhausting memory.
const MAX_LAYERS: usize = 1 << 12;

#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) cell: Cell,
    pub(super) input_size: usize,
    pub(super) hidden_size: usize,
    pub(super) num_layers: usize,
    pub(super) bias: bool,
    pub(super) batch_first: bool,
    pub(super) bidirectional: bool,
    /// The number of output features, if it differs from the size of the hidden state; otherwise 0.
    pub(super) proj_size: usize,
    pub(super) dropout: Dropout,
    /// Layer by layer, the forward direction first.
    weights: Vec<Weights>,
}

/// The weights of one layer in one direction.
#[derive(Clone, Debug)]
struct Weights {
    ih: Parameter,
    hh: Parameter,
    bias_ih: Option<Parameter>,
    bias_hh: Option<Parameter>,
    hr: Option<Parameter>,
}

impl Stack {
    pub(super) fn new(cell: Cell, input_size: usize, hidden_size: usize) -> Stack {
        let mut stack = Stack {
            cell,
            input_size,
            hidden_size,
            num_layers: 1,
            bias: true,
            batch_first: false,
            bidirectional: false,
            proj_size: 0,
            dropout: Dropout::new(0.0),
            weights: Vec::new(),
        };
        stack.build();
        stack
    }

    fn directions(&self) -> usize {
        if self.bidirectional { 2 } else { 1 }
    }

    /// The output features of a layer in one direction.
    fn output_size(&self) -> usize {
        if self.proj_size > 0 { self.proj_size } else { self.hidden_size }
    }

    /// Creates the parameters, uniform in `±1/√hidden` as in PyTorch.
    pub(super) fn build(&mut self) {
        let bound = if self.hidden_size > 0 { 1.0 / (self.hidden_size as f64).sqrt() } else { 0.0 };
        let init = Init::uniform(-bound, bound);
        let gates = self.cell.gates().saturating_mul(self.hidden_size);
        let out = self.output_size();
        self.weights.clear();
        if self.num_layers > MAX_LAYERS {
            return;
        }
        for layer in 0..self.num_layers {
            let inputs =
                if layer == 0 { self.input_size } else { out.saturating_mul(self.directions()) };
            for _ in 0..self.directions() {
                let mut bias_ih = None;
                let mut bias_hh = None;
                let mut hr = None;
                if self.bias {
                    bias_ih = Some(Parameter::new([gates], init.clone()));
                    bias_hh = Some(Parameter::new([gates], init.clone()));
                }
                if self.proj_size > 0 {
                    hr = Some(Parameter::new([self.proj_size, self.hidden_size], init.clone()));
                }
                let ih = Parameter::new([gates, inputs], init.clone());
                let hh = Parameter::new([gates, out], init.clone());
                self.weights.push(Weights { ih, hh, bias_ih, bias_hh, hr });
            }
        }
    }

    /// The output and the last state, tensor by tensor, from a sequence and the initial state, or
    /// zeros. With `lengths`, each sequence of the batch ends at its own length.
    pub(super) fn run(
        &self,
        name: &str,
        x: &Tensor,
        lengths: Option<&Tensor>,
        first: Option<&[&Tensor]>,
    ) -> (Tensor, Vec<Tensor>) {
        let (y, mut state) = NN.record(name, || self.record(name, x, lengths, first));
        // A poisoned input poisons all outputs.
        let last = state.last().cloned();
        state.extend(last.into_iter().cycle().take(self.cell.states().saturating_sub(state.len())));
        (y, state)
    }

    /// Like [`Stack::run`], for a cell whose state is one tensor.
    pub(super) fn run_with_one_state(
        &self,
        name: &str,
        x: &Tensor,
        lengths: Option<&Tensor>,
        h_0: Option<&Tensor>,
    ) -> (Tensor, Tensor) {
        let (y, mut state) = self.run(name, x, lengths, h_0.as_ref().map(std::slice::from_ref));
        (y, state.swap_remove(0))
    }

    fn record(
        &self,
        name: &str,
        x: &Tensor,
        lengths: Option<&Tensor>,
        first: Option<&[&Tensor]>,
    ) -> Result<(Tensor, Vec<Tensor>), Refusal> {
        let states = self.cell.states();
        x.live()?;
        live(first.unwrap_or_default())?;
        self.check(x, first)?;
        let batched = x.rank() == 3;
        let mut sequence = match (batched, self.batch_first) {
            (false, _) => x.unsqueeze(1),
            (true, true) => x.transpose(0, 1),
            (true, false) => x.clone(),
        };
        let within = match lengths {
            Some(lengths) => {
                let within = steps_within(name, x, &sequence, lengths)?;
                // So that the padding, which may be NaN, reaches neither a value nor a gradient.
                sequence = within.select(&sequence, 0.0);
                Some(within)
            }
            None => None,
        };
        let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); states];
        for layer in 0..self.num_layers {
            if layer > 0 {
                sequence = self.dropout.forward(&sequence);
            }
            let mut outputs = Vec::new();
            for direction in 0..self.directions() {
                let n = layer * self.directions() + direction;
                let (output, end) = self.record_direction(n, &sequence, within.as_ref(), first);
                outputs.push(output);
                for (all, state) in last.iter_mut().zip(end) {
                    all.push(state);
                }
            }
            sequence = match outputs.as_slice() {
                [output] => output.clone(),
                outputs => Tensor::concatenate(outputs, -1),
            };
        }
        let output = match (batched, self.batch_first) {
            (false, _) => sequence.squeeze(1),
            (true, true) => sequence.transpose(0, 1),
            (true, false) => sequence,
        };
        let mut state = Vec::new();
        for all in &last {
            let all = Tensor::stack(all, 0);
            state.push(if batched { all } else { all.squeeze(1) });
        }
        Ok((output, state))
    }

    /// The output and the last state of one layer in one direction, whose number is `n`, from a
    /// sequence `[length, batch, features]`.
    fn record_direction(
        &self,
        n: usize,
        sequence: &Tensor,
        within: Option<&Tensor>,
        first: Option<&[&Tensor]>,
    ) -> (Tensor, Vec<Tensor>) {
        let w = &self.weights[n];
        // One product for all steps; only the part that depends on the state remains in the loop.
        let bias_ih = w.bias_ih.as_ref().map(Parameter::get);
        let gates = affine(sequence, &w.ih.get(), bias_ih.as_ref());
        let recurrence = Recurrence {
            hh: w.hh.get(),
            bias_hh: w.bias_hh.as_ref().map(Parameter::get),
            hr: w.hr.as_ref().map(Parameter::get),
        };
        let batch = sequence.size(1);
        let mut state = Vec::new();
        for i in 0..self.cell.states() {
            let size = if i == 0 { self.output_size() } else { self.hidden_size };
            state.push(match first {
                Some(first) => {
                    first[i].narrow(0, n, 1).reshape([batch, size]).to_dtype(gates.dtype())
                }
                None => Tensor::zeros(gates.dtype(), [batch, size]),
            });
        }
        let step = |state: Vec<Tensor>, (gates, within): (Tensor, Option<Tensor>)| {
            let mut next = self.cell.step(&gates, &state, &recurrence, self.hidden_size);
            // Under autocast some operations widen.
            for (next, state) in next.iter_mut().zip(&state) {
                *next = next.to_dtype(state.dtype());
            }
            // After the end of a sequence, the state stays and the output is 0. In the reverse
            // direction, the state thus stays until the sequence begins.
            let Some(within) = within else {
                let y = next[0].clone();
                return (next, y);
            };
            let y = within.select(&next[0], 0.0);
            for (next, state) in next.iter_mut().zip(&state) {
                *next = within.select(&*next, state);
            }
            (next, y)
        };
        let is_reverse = n % self.directions() == 1;
        let (end, output) = Scan::new().reverse(is_reverse).run(state, (gates, within), step);
        (output, end)
    }

    /// What is wrong with the inputs, if anything.
    fn check(&self, x: &Tensor, first: Option<&[&Tensor]>) -> Result<(), String> {
        if self.num_layers == 0 {
            return Err("there are 0 layers; at least one is needed".to_owned());
        }
        if self.num_layers > MAX_LAYERS {
            return Err(format!("there are {} layers; the limit is {MAX_LAYERS}", self.num_layers));
        }
        if !(x.rank() == 2 || x.rank() == 3) || x.size(-1) != self.input_size {
            let axes = if self.batch_first { "[batch, length, " } else { "[length, batch, " };
            return Err(format!(
                "the input is {}; it must be {axes}{size}], or [length, {size}] without a batch",
                x.ty(),
                size = self.input_size
            ));
        }
        let batch = (x.rank() == 3).then(|| x.size(if self.batch_first { 0 } else { 1 }));
        for (i, state) in first.unwrap_or_default().iter().enumerate() {
            let size = if i == 0 { self.output_size() } else { self.hidden_size };
            let mut expected = vec![self.num_layers * self.directions()];
            expected.extend(batch);
            expected.push(size);
            if state.shape().dims() != expected || !state.dtype().is_float() {
                return Err(format!(
                    "{} is {}; for the input {} it must be {expected:?}",
                    ["h_0", "c_0"][i.min(1)],
                    state.ty(),
                    x.ty()
                ));
            }
        }
        Ok(())
    }
}

/// Whether each step `[length, batch, 1]` of a sequence `[length, batch, features]` is before the
/// end of its sequence.
fn steps_within(
    name: &str,
    x: &Tensor,
    sequence: &Tensor,
    lengths: &Tensor,
) -> Result<Tensor, Refusal> {
    lengths.live()?;
    let [steps, batch] = [sequence.size(0), sequence.size(1)];
    if x.rank() != 3 {
        return Err(
            format!("lengths need a batch of sequences, but the input is {}", x.ty()).into()
        );
    }
    if lengths.shape().dims() != [batch] || !lengths.dtype().is_integer() {
        return Err(format!(
            "the lengths are {}; for the input {} they must be integers [{batch}]",
            lengths.ty(),
            x.ty()
        )
        .into());
    }
    let reason = format!("it must be from 0 to {steps}");
    let rule = IndexRule::below(name, "a length", steps + 1, reason);
    let lengths = check_indices(lengths, rule)?.to_dtype(DType::I64);
    Ok(Tensor::iota(DType::I64, [steps, batch, 1], 0).lt(lengths.unsqueeze(-1)))
}

impl Module for Stack {
    fn visit(&self, visit: &mut Visit<'_>) {
        for (n, w) in self.weights.iter().enumerate() {
            let layer = n / self.directions();
            let suffix = if n % self.directions() == 1 { "_reverse" } else { "" };
            let named = [
                ("weight_ih", Some(&w.ih)),
                ("weight_hh", Some(&w.hh)),
                ("bias_ih", w.bias_ih.as_ref()),
                ("bias_hh", w.bias_hh.as_ref()),
                ("weight_hr", w.hr.as_ref()),
            ];
            for (name, parameter) in named {
                if let Some(parameter) = parameter {
                    visit.child(&format!("{name}_l{layer}{suffix}"), parameter);
                }
            }
        }
        visit.child("dropout", &self.dropout);
    }
}
