//! [`StateLayout`]: the tensors of a training state, their roles and their shardings.

use std::cmp::Reverse;
use std::ops::Index;
use std::panic::Location;

use fulmen_nn::optim::{FirstValue, Optimizer as _};
use fulmen_nn::{Module, Parameter};
use fulmen_tensor::{DType, Literal, Mesh, Sharding, Tensor, TensorType, Variable};

use super::names::{self, EVALUATED};
use super::rows;
use crate::Result;
use crate::rules::evaluated_weights::EvaluatedWeights;
use crate::rules::sum_dtype::sum_dtype;
use crate::state::kernel_order::with_output_channels_last;
use crate::step_config::StepConfig;
use crate::step_config::optimizers::{Member, Optimizers};
use crate::step_config::phases::Phases;

/// The index of a tensor among the entries of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId(usize);

impl EntryId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A tensor of the state.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The names of the rows along the first axis, if the tensor is [joined](super::rows).
    pub(super) rows: Vec<String>,
    pub(crate) ty: TensorType,
    pub(crate) origin: Origin,
    /// Its sharding between steps.
    pub(crate) sharding: Sharding,
}

/// Where the value before the first step comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    /// A parameter or buffer of the module, or one per row. If `gathered`, it is gathered before
    /// each use; otherwise it is used in its sharded form.
    Module { variables: Vec<Variable>, gathered: bool },
    /// A tensor that starts as the module's value, such as its evaluated value.
    Copy(Vec<Variable>),
    /// A tensor of the optimizer or the Trainer, with the first value of each row.
    Own(Tensor),
}

impl Entry {
    /// A tensor of the optimizer or the Trainer.
    fn own(name: String, first: Tensor, sharding: Sharding) -> Entry {
        Entry {
            name,
            rows: Vec::new(),
            ty: first.ty().clone(),
            origin: Origin::Own(first),
            sharding,
        }
    }

    /// The first value of a tensor of the optimizer or the Trainer: a number, or zeros. For a
    /// joined tensor, the value of each row.
    pub(crate) fn first(&self) -> Result<Literal> {
        let literal = if let Origin::Own(first) = &self.origin { first.literal() } else { None };
        let ty = self.row_type();
        let zeros = || Literal::from_bytes(ty.clone(), &vec![0; ty.size_in_bytes()]);
        literal.map_or_else(zeros, Ok)
    }

    /// The module's variables that this entry holds.
    pub(crate) fn variables(&self) -> &[Variable] {
        if let Origin::Module { variables, .. } = &self.origin { variables } else { &[] }
    }

    /// The values that a fit starts with, one per row.
    fn values(&self) -> Vec<Tensor> {
        match &self.origin {
            Origin::Module { variables, .. } => variables.iter().map(Variable::get).collect(),
            Origin::Copy(variables) => {
                variables.iter().map(|own| own.get().to_dtype(self.ty.dtype)).collect()
            }
            Origin::Own(first) => vec![first.clone(); self.names().len()],
        }
    }

    /// The value that a fit starts with.
    pub(super) fn value(&self) -> Tensor {
        match &self.origin {
            Origin::Own(first) => first.broadcast_to(&self.ty.shape),
            _ => self.stack(&self.values()),
        }
    }

    /// The value that a fit starts with, if it is on the host.
    pub(super) fn literal(&self) -> Option<Literal> {
        let literals = self.values().iter().map(Tensor::literal).collect::<Option<Vec<_>>>()?;
        self.stack_literals(literals).ok()
    }
}

/// The tensors of a training state, in the order in which a step takes them: the module's, the
/// optimizers', then the Trainer's.
pub(crate) struct StateLayout {
    entries: Vec<Entry>,
    /// The number of entries of the module.
    module_len: usize,
    /// The slots of each optimizer.
    pub(crate) optimizers: Vec<OptimizerSlots>,
    pub(crate) evaluated: Vec<Evaluated>,
    /// The number of updates that the evaluated weights count.
    pub(crate) evaluated_updates: EntryId,
    pub(crate) counters: Counters,
    pub(crate) phases: Phases,
}

/// The entries of an optimizer. Each parameter belongs to one optimizer.
pub(crate) struct OptimizerSlots {
    /// The parameters that it updates.
    pub(crate) params: Vec<ParamSlots>,
    /// The number of its steps.
    pub(crate) updates: EntryId,
    /// The steps of parameters that were frozen at first, one counter for each frozen part.
    pub(crate) frozen_parts: Vec<EntryId>,
    /// With gradient accumulation, the weight of the batches in the sums of gradients, if the loss
    /// brings it. For a single optimizer, it is the number of samples otherwise.
    pub(crate) weight: Option<EntryId>,
    /// The loss of the optimizer's latest step, if the optimizer skips steps.
    pub(crate) loss: Option<EntryId>,
    /// The state of each rule of the step, in the rule's order. With accumulated batches, the sum of
    /// the losses over the samples of a group follows, if the rule reads the loss.
    pub(crate) step_rules: Vec<Vec<EntryId>>,
    /// The state of each rule around the optimizer, in the rule's order.
    pub(crate) rules: Vec<Vec<EntryId>>,
}

/// A parameter that an optimizer updates, with its further entries.
pub(crate) struct ParamSlots {
    pub(crate) param: EntryId,
    /// The optimizer's state for it, in the optimizer's order.
    pub(crate) slots: Vec<EntryId>,
    /// The state of each rule around the optimizer for it, in the rule's order.
    pub(crate) rules: Vec<Vec<EntryId>>,
    /// The sum of its gradients over a group of batches.
    pub(crate) grad_sum: Option<EntryId>,
    /// The index of the frozen part that has the parameter, if it is frozen at first.
    pub(crate) frozen_part: Option<usize>,
    /// The line that asked for sparse gradients.
    pub(crate) sparse: Option<&'static Location<'static>>,
}

impl ParamSlots {
    /// The entries that the optimizer changes: the parameter and its state.
    pub(crate) fn changed(&self) -> impl Iterator<Item = EntryId> {
        [self.param].into_iter().chain(self.slots.iter().copied())
    }

    /// The entries that the rules around the optimizer change.
    pub(crate) fn rule_state(&self) -> impl Iterator<Item = EntryId> {
        self.rules.iter().flatten().copied()
    }
}

/// The value that is evaluated instead of a module's value.
pub(crate) struct Evaluated {
    pub(crate) source: EntryId,
    pub(crate) evaluated: EntryId,
}

/// The counters of a step.
pub(crate) struct Counters {
    /// Finished batches.
    pub(crate) step: EntryId,
    /// The batch within its epoch and the number of finished epochs, if something depends on the
    /// end of an epoch.
    pub(crate) epoch: Option<[EntryId; 2]>,
    /// The steps of the optimizer. With several optimizers, the steps of the training.
    pub(crate) updates: EntryId,
    /// With gradient accumulation, the samples in the sums of gradients, or their weight, and the
    /// number of finished groups.
    pub(crate) group: Option<[EntryId; 2]>,
    /// The host's factor on the learning rates, if a callback changes them.
    pub(crate) lr_factor: Option<EntryId>,
    /// The number of steps that changed the evaluated weights.
    pub(crate) evaluated: Option<EntryId>,
}

impl Index<EntryId> for StateLayout {
    type Output = Entry;

    fn index(&self, id: EntryId) -> &Entry {
        &self.entries[id.0]
    }
}

impl StateLayout {
    /// Lists the entries. `scanned` holds the module's variables that the step stacks for scans.
    pub(crate) fn new(
        module: &dyn Module,
        optimizers: &Optimizers,
        config: &StepConfig,
        phases: Phases,
        scanned: &[Vec<Variable>],
    ) -> StateLayout {
        let accumulates = config.group_sizes().accumulates();
        let parameters = module.parameters();
        let module_entries = of_module(module, config);
        let groups =
            rows::groups(&parameters, &module_entries, scanned, optimizers, &phases, config);
        let mut entries = Entries(rows::join(module_entries, &groups));
        let module_len = entries.0.len();
        let mut params: Vec<Vec<ParamSlots>> =
            optimizers.members().iter().map(|_| Vec::new()).collect();
        for (i, group) in groups.iter().enumerate() {
            let (name, parameter) = &parameters[group[0]];
            let Some(optimizer) = optimizers.training(name, parameter) else { continue };
            let ty = parameter.ty();
            let mut state = |slot: &str, first: FirstValue| {
                entries.add_parameter_state(EntryId(i), parameter, slot, first, config)
            };
            let slots = optimizers
                .state(name, &ty)
                .into_iter()
                .map(|(slot, first)| state(slot, FirstValue::Value(first)))
                .collect();
            let mut rules = Vec::new();
            for rule in optimizers.members()[optimizer].rules.iter() {
                let slots = rule.init_parameter(name, &ty).into_iter();
                let slots =
                    slots.map(|(slot, first)| state(&names::of_rule(rule.name(), slot), first));
                rules.push(slots.collect());
            }
            let frozen_part = phases.frozen_part_of(name);
            params[optimizer].push(ParamSlots {
                param: EntryId(i),
                slots,
                rules,
                grad_sum: None,
                frozen_part,
                sparse: parameter.sparse_gradient_location(),
            });
        }
        for slots in params.iter_mut().flatten().filter(|_| accumulates) {
            let param = &entries.0[slots.param.0];
            let dtype = sum_dtype(param.ty.dtype);
            let first = Tensor::zeros(dtype, &param.row_type().shape);
            let sum = param.with_same_shape(names::grad_sum, dtype, Origin::Own(first));
            slots.grad_sum = Some(entries.add(sum));
        }
        let mut evaluated = Vec::new();
        for i in 0..module_len {
            let Some(rule) = &config.evaluated else { break };
            let trained = params.iter().flatten().any(|slots| slots.param.0 == i);
            let entry = evaluated_entry(&entries.0[i], &**rule, trained, i >= groups.len());
            if let Some(entry) = entry {
                evaluated.push(Evaluated { source: EntryId(i), evaluated: entries.add(entry) });
            }
        }
        let zero = || Tensor::zeros(DType::I32, []);
        // Count the updates even if every step is an optimizer step: a later run may resume from
        // this one with other settings.
        let updates = entries.scalar(names::UPDATES, zero());
        let members = optimizers.members().iter().zip(params).enumerate();
        let optimizers = members.map(|(i, (member, params))| {
            let mut own =
                |name: &str, first| entries.scalar(&names::of_optimizer(name, &member.name), first);
            OptimizerSlots {
                params,
                updates: if optimizers.is_single() { updates } else { own(names::UPDATES, zero()) },
                frozen_parts: phases
                    .frozen_parts()
                    .iter()
                    .map(|part| own(&names::of_rule_state(&*part.rule, &part.pattern), zero()))
                    .collect(),
                weight: (accumulates && !optimizers.is_single())
                    .then(|| own(names::WEIGHT, Tensor::scalar(0.0f32))),
                loss: (optimizers.cadence(i) > 1).then(|| own(names::LOSS, Tensor::scalar(0.0f32))),
                step_rules: config
                    .rules
                    .iter()
                    .map(|rule| {
                        let mut state = rule.init();
                        if accumulates && rule.inputs().loss {
                            state.push(("loss_sum", Tensor::zeros(DType::F32, [])));
                        }
                        let name = |slot: &str| names::of_rule_state(&**rule, slot);
                        state.into_iter().map(|(slot, first)| own(&name(slot), first)).collect()
                    })
                    .collect(),
                rules: entries.add_rule_state(member),
            }
        });
        let mut optimizers: Vec<OptimizerSlots> = optimizers.collect();
        let group = accumulates.then(|| {
            [
                entries.scalar(names::SAMPLES, Tensor::zeros(DType::F32, [])),
                entries.scalar(names::GROUPS, zero()),
            ]
        });
        for slots in &mut optimizers {
            slots.weight = slots.weight.or(group.map(|[samples, _]| samples));
        }
        let counts_epochs = accumulates
            || !phases.frozen_parts().is_empty()
            || config.evaluated.as_ref().is_some_and(|rule| rule.counts_epochs());
        let epoch = counts_epochs
            .then(|| [names::BATCH, names::EPOCHS].map(|name| entries.scalar(name, zero())));
        let evaluated_steps = config
            .evaluated
            .as_ref()
            .map(|rule| entries.scalar(&names::evaluated_steps(&**rule), zero()));
        let counts_own =
            config.evaluated.as_ref().is_some_and(|rule| rule.counts_updates_of_one_optimizer());
        let evaluated_updates = optimizers
            .iter()
            .filter(|_| counts_own)
            .find(|slots| {
                let mut params = slots.params.iter();
                params.any(|param| evaluated.iter().any(|own| own.source == param.param))
            })
            .map_or(updates, |slots| slots.updates);
        let lr_factor = config
            .scales_learning_rate
            .then(|| entries.scalar(names::LR_FACTOR, Tensor::scalar(1.0f32)));
        let step = entries.scalar(names::STEP, zero());
        StateLayout {
            entries: entries.0,
            module_len,
            optimizers,
            evaluated,
            evaluated_updates,
            counters: Counters {
                step,
                epoch,
                updates,
                group,
                lr_factor,
                evaluated: evaluated_steps,
            },
            phases,
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> + use<> {
        (0..self.entries.len()).map(EntryId)
    }

    /// The entries of the module: its parameters, then its buffers.
    pub(crate) fn module(&self) -> &[Entry] {
        &self.entries[..self.module_len]
    }

    /// The bytes of some entries on each device.
    pub(crate) fn device_bytes(&self, ids: impl IntoIterator<Item = EntryId>, mesh: &Mesh) -> u64 {
        let shard = |entry: &Entry| {
            entry.sharding.shard_shape(mesh, &entry.ty.shape).map(|shape| shape.num_elements())
        };
        let bytes =
            |entry: &Entry| shard(entry).unwrap_or_default() * entry.ty.dtype.size_in_bytes();
        ids.into_iter().map(|id| bytes(&self[id]) as u64).sum()
    }

    /// The entries that fit into `room` bytes on each device, chosen largest first.
    pub(crate) fn fitting(&self, room: u64, mesh: &Mesh) -> Vec<EntryId> {
        let mut left = room;
        let mut ids: Vec<_> = self.ids().map(|id| (self.device_bytes([id], mesh), id)).collect();
        ids.sort_by_key(|&(bytes, id)| (Reverse(bytes), id));
        ids.retain(|(bytes, _)| left.checked_sub(*bytes).map(|rest| left = rest).is_some());
        ids.sort_by_key(|&(_, id)| id);
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether the entry with this name counts steps of an optimizer.
    pub(crate) fn counts_updates(&self, name: &str) -> bool {
        let own =
            |slots: &OptimizerSlots| [slots.frozen_parts.clone(), vec![slots.updates]].concat();
        let ids = self.optimizers.iter().flat_map(own);
        ids.chain([self.counters.updates]).any(|id| self[id].name == name)
    }

    /// Whether an optimizer changes the entry.
    pub(crate) fn is_trained(&self, id: EntryId) -> bool {
        self.optimizers
            .iter()
            .flat_map(|optimizer| &optimizer.params)
            .any(|slots| slots.param == id)
    }

    /// For each entry of the module, the entry to validate with and to save: its evaluated value, or
    /// itself.
    pub(crate) fn evaluated_entries(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.ids().take(self.module_len).collect();
        for Evaluated { source, evaluated } in &self.evaluated {
            ids[source.0] = *evaluated;
        }
        ids
    }

    /// The names of each entry in a file. Evaluated values have the module's names there. A joined
    /// entry has the names of its rows.
    pub(crate) fn names_in_file(&self) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> =
            self.entries.iter().map(|entry| entry.names().to_vec()).collect();
        for Evaluated { source, evaluated } in &self.evaluated {
            all[evaluated.0] = self[*source].names().to_vec();
            all[source.0] = self[*source]
                .names()
                .iter()
                .map(|name| format!("{}{name}", names::CURRENT))
                .collect();
        }
        all
    }

    /// Whether any of the module's values are joined.
    pub(crate) fn is_joined(&self) -> bool {
        self.module().iter().any(Entry::is_joined)
    }
}

/// The entries listed so far.
struct Entries(Vec<Entry>);

impl Entries {
    fn add(&mut self, entry: Entry) -> EntryId {
        self.0.push(entry);
        EntryId(self.0.len() - 1)
    }

    fn scalar(&mut self, name: &str, first: Tensor) -> EntryId {
        self.add(Entry::own(name.to_owned(), first, Sharding::replicated()))
    }

    /// Adds the state of an optimizer or a rule for a parameter.
    fn add_parameter_state(
        &mut self,
        id: EntryId,
        parameter: &Parameter,
        slot: &str,
        first: FirstValue,
        config: &StepConfig,
    ) -> EntryId {
        let param = &self.0[id.0];
        let name = |parameter: &str| names::slot(slot, parameter);
        let first = match first {
            FirstValue::Value(first) => first,
            FirstValue::Parameter => {
                let dtype = sum_dtype(param.ty.dtype);
                let origin = Origin::Copy(param.variables().to_vec());
                return self.add(param.with_same_shape(name, dtype, origin));
            }
        };
        // Elementwise state is sharded like the parameter.
        let is_elementwise = *first.shape() == parameter.ty().shape
            && (param.is_joined() || parameter.sharding().is_some());
        let dtype = first.dtype();
        let entry = if is_elementwise {
            param.with_same_shape(name, dtype, Origin::Own(first))
        } else {
            let sharding = sharding_by_strategy(first.ty(), config);
            Entry::own(name(&param.name), first, sharding)
        };
        self.add(entry)
    }

    /// Adds the state of the rules around an optimizer, except that for parameters.
    fn add_rule_state(&mut self, member: &Member) -> Vec<Vec<EntryId>> {
        let mut rules = Vec::new();
        for rule in member.rules.iter() {
            let name = |slot: &str| names::own_state_of_rule(rule.name(), slot, &member.name);
            let slots = rule.init().into_iter();
            rules.push(slots.map(|(slot, first)| self.scalar(&name(slot), first)).collect());
        }
        rules
    }
}

/// The evaluated value of a module's value, if it has one.
fn evaluated_entry(
    entry: &Entry,
    rule: &dyn EvaluatedWeights,
    trained: bool,
    is_buffer: bool,
) -> Option<Entry> {
    let Origin::Module { variables, .. } = &entry.origin else { return None };
    let name = |name: &str| format!("{EVALUATED}{name}");
    let dtype = sum_dtype(entry.ty.dtype);
    // The rows of a joined entry are evaluated all or not at all.
    let has = rule.has(&entry.names()[0], &entry.ty, trained, is_buffer);
    has.then(|| entry.with_same_shape(name, dtype, Origin::Copy(variables.clone())))
}

/// A parameter's sharding, from the user or the strategy, and whether it is gathered before each
/// use.
fn sharding_of(parameter: &Parameter, config: &StepConfig) -> (Sharding, bool) {
    match parameter.sharding() {
        // The model computes with the user's sharding (tensor parallelism), so don't gather.
        Some(own) => (own, false),
        None => {
            let sharding = sharding_by_strategy(&parameter.ty(), config);
            // A step reads only some rows of a table with sparse gradients.
            let gathered =
                !sharding.is_replicated() && parameter.sparse_gradient_location().is_none();
            (sharding, gathered)
        }
    }
}

/// The sharding of a trained tensor, or of optimizer state.
fn sharding_by_strategy(ty: &TensorType, config: &StepConfig) -> Sharding {
    let sharding = config.options.strategy.parameter(ty, &config.mesh);
    if config.stores_output_channels_last {
        with_output_channels_last(sharding, ty)
    } else {
        sharding
    }
}

/// The entries of a module: its parameters and its buffers.
pub(crate) fn of_module(module: &dyn Module, config: &StepConfig) -> Vec<Entry> {
    let entry = |name, variable: Variable, sharding, gathered| Entry {
        name,
        rows: Vec::new(),
        ty: variable.ty(),
        origin: Origin::Module { variables: vec![variable], gathered },
        sharding,
    };
    let parameters = module.parameters().into_iter().map(|(name, p)| {
        let (sharding, gathered) = sharding_of(&p, config);
        entry(name, p.variable(), sharding, gathered)
    });
    let buffers = module
        .buffers()
        .into_iter()
        .map(|(name, b)| entry(name, b.variable().clone(), Sharding::replicated(), false));
    parameters.chain(buffers).collect()
}
