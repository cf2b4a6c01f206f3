//! Joined parameters. If equal layers run as a scan, the state stores their parameters as the rows
//! of one tensor, `[layers, …]`. The optimizer's state for them is stored in the same way. A step
//! takes the joined tensor, and the optimizer updates it as a whole. For users, each row keeps its
//! name: in checkpoints, in messages and in the module.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use fulmen_nn::Parameter;
use fulmen_tensor::{Block, DType, Literal, Sharding, Tensor, TensorType, Variable};

use super::{Entry, Origin, names};
use crate::Result;
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Optimizers;
use crate::step_config::phases::Phases;

/// For each tensor of the state, the indices of the parameters that are its rows. `scanned` lists
/// the variables that scans stack. They are joined if they have the same type and sharding, and if
/// training treats them alike and element by element.
pub(super) fn groups(
    parameters: &[(String, Parameter)],
    entries: &[Entry],
    scanned: &[Vec<Variable>],
    optimizers: &Optimizers,
    phases: &Phases,
    config: &StepConfig,
) -> Vec<Vec<usize>> {
    let kind = |index: &usize| {
        let (name, parameter) = &parameters[*index];
        let entry = &entries[*index];
        let gathered = match &entry.origin {
            Origin::Module { gathered, .. } => gathered.clone(),
            _ => None,
        };
        let evaluated = config.evaluated.as_ref().is_some_and(|it| it.includes(name));
        let storage = (entry.ty.clone(), entry.sharding.clone(), gathered, evaluated);
        (storage, optimizers.training(name, parameter), phases.frozen_part_of(name))
    };
    let can_join = |rows: &[usize]| {
        let ((ty, ..), optimizer, _) = kind(&rows[0]);
        let names: Vec<&str> = rows.iter().map(|&row| parameters[row].0.as_str()).collect();
        let stacks = optimizer.is_none_or(|optimizer| {
            let member = &optimizers.members()[optimizer];
            let optimizer = &member.optimizer;
            let state = optimizer.state(names[0], &ty);
            // A rule gets each parameter as the user wrote it.
            member.rules.is_empty()
                && optimizer.updates_stacked(&names, &ty)
                && state.iter().all(|(_, first)| *first.shape() == ty.shape)
        });
        stacks && rows.iter().all(|row| kind(row) == kind(&rows[0]))
    };
    let all_variables: Vec<Variable> =
        parameters.iter().map(|(_, parameter)| parameter.variable()).collect();
    let mut joined = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for variables in scanned.iter().filter(|variables| variables.len() > 1) {
        let index = |variable: &Variable| all_variables.iter().position(|other| other.is(variable));
        let Some(rows) = variables.iter().map(index).collect::<Option<Vec<usize>>>() else {
            continue;
        };
        let distinct: BTreeSet<usize> = rows.iter().copied().collect();
        if distinct.len() == rows.len() && distinct.is_disjoint(&taken) && can_join(&rows) {
            taken.extend(distinct);
            joined.insert(rows[0], rows);
        }
    }
    let group =
        |index| joined.remove(&index).or_else(|| (!taken.contains(&index)).then(|| vec![index]));
    (0..parameters.len()).filter_map(group).collect()
}

/// Joins the parameters at the head of a module's entries by these groups.
pub(super) fn join(entries: Vec<Entry>, groups: &[Vec<usize>]) -> Vec<Entry> {
    let parameters: usize = groups.iter().map(Vec::len).sum();
    let joined = groups.iter().map(|rows| {
        let first = &entries[rows[0]];
        let Origin::Module { gathered, .. } = &first.origin else { return first.clone() };
        let rows: Vec<&Entry> = rows.iter().map(|&row| &entries[row]).collect();
        if let [single] = rows[..] {
            return single.clone();
        }
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        let variables = rows.iter().flat_map(|row| row.variables()).cloned().collect();
        Entry {
            name: names::joined(&names),
            rows: names,
            ty: TensorType::new(first.ty.dtype, [&[rows.len()], &first.ty.shape[..]].concat()),
            origin: Origin::Module { variables, gathered: gathered.clone() },
            sharding: first.sharding.stacked(),
        }
    });
    joined.chain(entries[parameters..].iter().cloned()).collect()
}

impl Entry {
    pub(crate) fn is_joined(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The names that users see: the names of the rows, or the entry's own name.
    pub(crate) fn names(&self) -> &[String] {
        if self.is_joined() { &self.rows } else { slice::from_ref(&self.name) }
    }

    /// The type of a value with one of those names.
    pub(crate) fn row_type(&self) -> TensorType {
        TensorType::new(self.ty.dtype, &self.ty.shape[usize::from(self.is_joined())..])
    }

    /// The sharding of a value with one of those names.
    pub(crate) fn row_sharding(&self) -> Sharding {
        if self.is_joined() { self.sharding.row() } else { self.sharding.clone() }
    }

    /// Splits a value of this entry into one value per name.
    pub(crate) fn split(&self, value: &Tensor) -> Vec<Tensor> {
        match self.rows.len() {
            0 => vec![value.clone()],
            rows => (0..rows).map(|row| value.index(0, row as isize)).collect(),
        }
    }

    /// Joins one value per name into a value of this entry.
    pub(crate) fn stack(&self, values: &[Tensor]) -> Tensor {
        match values {
            [single] if !self.is_joined() => single.clone(),
            rows => Tensor::stack(rows, 0),
        }
    }

    /// Like [`Entry::stack`], on the host, for whole values or for the same block of each.
    pub(crate) fn stack_literals(&self, mut literals: Vec<Literal>) -> Result<Literal> {
        if !self.is_joined() && literals.len() == 1 {
            return Ok(literals.remove(0));
        }
        let row = literals.first().map_or_else(|| self.row_type(), |first| first.ty().clone());
        let ty = TensorType::new(row.dtype, [&[literals.len()], &row.shape[..]].concat());
        let bytes: Vec<&[u8]> = literals.iter().map(Literal::bytes).collect();
        Literal::from_bytes(ty, &bytes.concat())
    }

    /// The block of each row for a block of this entry.
    pub(crate) fn row_block(&self, block: &Block) -> Block {
        let skipped = usize::from(self.is_joined());
        Block { start: block.start[skipped..].to_vec(), size: block.size[skipped..].to_vec() }
    }

    /// An entry with the same elements, for example an optimizer's state. `name` maps the names.
    pub(super) fn with_same_shape(
        &self,
        name: impl Fn(&str) -> String,
        dtype: DType,
        origin: Origin,
    ) -> Entry {
        Entry {
            name: name(&self.name),
            rows: self.rows.iter().map(|row| name(row)).collect(),
            ty: TensorType::new(dtype, &self.ty.shape),
            origin,
            sharding: self.sharding.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fulmen_nn::optim::{AdamW, Lamb, Optimizer, ParamGroups};
    use fulmen_nn::{Linear, Module as _, scan_layers, scanned};
    use fulmen_tensor::Mesh;

    use super::*;
    use crate::state::StateLayout;
    use crate::step_config::Choices;
    use crate::{Plan, Strategy, Trainer};

    /// The joined entries of three layers, each with its type and sharding.
    fn joined(optimizer: impl Optimizer, frozen: &[&str]) -> Vec<String> {
        let layers: Vec<Linear> = (0..3).map(|_| Linear::new(16, 8)).collect();
        layers.initialize(0);
        for (name, parameter) in layers.parameters() {
            parameter.set_requires_grad(!frozen.contains(&name.as_str()));
        }
        let x = Tensor::ones(DType::F32, [2, 16]);
        let (_, scanned) = scanned(|| {
            scan_layers(&layers, &x, |layer, x| Tensor::concatenate(&[&layer.forward(x); 2], 1))
        });
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let replicas = Strategy::replicas(&mesh);
        let options = Trainer::builder().strategy(Strategy::Fsdp).options().unwrap();
        let config = Choices::from(options).for_mesh(mesh, replicas);
        let optimizers = Optimizers::from_module(Box::new(optimizer));
        let plan = Plan { steps_per_epoch: 1, max_epochs: 1, total_steps: 1 };
        let phases = Phases::new(&layers, &optimizers, &config, &plan, 1).unwrap();
        let layout = StateLayout::new(&layers, &optimizers, &config, phases, &scanned);
        let joined = layout.entries().iter().filter(|entry| entry.is_joined());
        joined.map(|entry| format!("{} {} {}", entry.name, entry.ty, entry.sharding)).collect()
    }

    #[test]
    fn layers_of_a_scan_are_joined_where_training_treats_them_alike() {
        let all = [
            "*.weight f32[3, 8, 16] [-, -, data]",
            "*.bias f32[3, 8] [-, data]",
            "optimizer/exp_avg/*.weight f32[3, 8, 16] [-, -, data]",
            "optimizer/exp_avg_sq/*.weight f32[3, 8, 16] [-, -, data]",
            "optimizer/exp_avg/*.bias f32[3, 8] [-, data]",
            "optimizer/exp_avg_sq/*.bias f32[3, 8] [-, data]",
        ];
        assert_eq!(joined(AdamW::new(0.1), &[]), all);
        assert_eq!(joined(AdamW::new(0.1), &["0.bias", "1.bias", "2.bias"]), all[..4]);
        assert_eq!(joined(AdamW::new(0.1), &["1.bias"]), [all[0], all[2], all[3]]);
        assert_eq!(
            joined(ParamGroups::new(AdamW::new(0.1)).no_decay_on_biases_and_norms(), &[]),
            all
        );
        assert_eq!(
            joined(ParamGroups::new(AdamW::new(0.1)).lr_factor("1.weight", 2.0), &[]).len(),
            3
        );
        assert!(
            joined(Lamb::new(0.1), &[]).is_empty(),
            "the length of each layer's weights counts"
        );
    }
}
