//! [`Lora`]: low-rank updates of a frozen model's weights, selected by parameter names (Hu et al.
//! 2021), in peft's file format.

mod config;
mod decomposition;
#[cfg(test)]
#[cfg(all(feature = "decoder", feature = "gpt2"))]
mod int8_tests;
#[cfg(all(test, feature = "bert", feature = "gpt2"))]
mod tests;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use fulmen_nn::init::{Fan, Nonlinearity};
use fulmen_nn::optim::pattern;
use fulmen_nn::weights::{Strictness, load_weights, save_weights};
use fulmen_nn::{Init, LowRank, Module, Parameter, Visit, Visitor};
use fulmen_tensor::{Literal, Tensor};
use serde_json::{Value, json};

use crate::error::InConfig as _;
use crate::pretrained::{read_json, read_object};
use crate::{Result, error};
use config::{Config, InitialWeights};
use decomposition::Matrix;

/// The files of an adapter.
const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// A frozen model, and trained low-rank updates of some of its weights: a weight `W [out, in]` acts
/// as `W + alpha/r·B·A` with `A [r, in]` and `B [out, r]`. Initially `B` is 0, so the model is
/// unchanged. [`use_rslora`](Lora::use_rslora) divides by the root of `r` instead.
///
/// All parameters of the model are frozen. To train some of them too, such as a new classifier,
/// name them with [`modules_to_save`](Lora::modules_to_save).
///
/// A [`Linear`](fulmen_nn::Linear) layer computes its update as two small products, which cost
/// little in the backward pass; in other layers, the update is added to the weight. Layers that run
/// as a scan must have updates of the same weights. Dropout of the update (`lora_dropout`) is not
/// supported. [`quantize_int8`](Lora::quantize_int8) stores the frozen model in a quarter of the
/// memory.
///
/// ```
/// use fulmen_models::gpt2::{Config, Gpt2};
/// use fulmen_models::{Lora, Pretrained};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let model = Gpt2::new(Config { vocab_size: 50, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2, ..Config::default() })?;
/// let lora = Lora::new(model, &["*.c_attn.weight"], 2, 4.0)?;
/// lora.initialize(0);
/// lora.eval();
///
/// let trained: Vec<String> = lora.parameters().into_iter().filter(|(_, p)| p.requires_grad()).map(|(name, _)| name).collect();
/// assert_eq!(trained[0], "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight");
/// assert_eq!(trained.len(), 2);
/// let logits = lora.apply(|model| model.forward(Tensor::zeros(DType::I32, [1, 4])));
/// assert_eq!(logits.ty().to_string(), "f32[1, 4, 50]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct Lora<M> {
    #[module(flatten)]
    model: M,
    #[module(flatten)]
    adapters: Adapters,
    #[module(flatten)]
    scales: Scales,
    r: usize,
    alpha: f64,
    use_rslora: bool,
    #[module(skip)]
    init: InitialWeights,
    #[module(skip)]
    modules_to_save: Vec<String>,
}

/// The updates, by the names of their layers.
struct Adapters(BTreeMap<String, Adapter>);

/// The scales of int8 weights, by the names of these.
struct Scales(BTreeMap<String, Parameter>);

impl Module for Scales {
    fn visit(&self, visit: &mut Visit<'_>) {
        for (weight, scale) in &self.0 {
            visit.child(&format!("{weight}_scale"), scale);
        }
    }
}

/// The update of a weight.
struct Adapter {
    weight: Parameter,
    /// Whether the weight is `[in, out]`.
    transposed: bool,
    a: Parameter,
    b: Parameter,
}

/// With peft's names.
impl Module for Adapters {
    fn visit(&self, visit: &mut Visit<'_>) {
        for (layer, adapter) in &self.0 {
            visit.child(&format!("base_model.model.{layer}.lora_A.weight"), &adapter.a);
            visit.child(&format!("base_model.model.{layer}.lora_B.weight"), &adapter.b);
        }
    }
}

/// The content of files: the updates, and the parts that are trained whole.
struct AdapterFile<'a> {
    adapters: &'a Adapters,
    whole: Vec<(String, Parameter)>,
}

impl Module for AdapterFile<'_> {
    fn visit(&self, visit: &mut Visit<'_>) {
        self.adapters.visit(visit);
        for (name, parameter) in &self.whole {
            visit.child(&format!("base_model.model.{name}"), parameter);
        }
    }
}

impl Adapter {
    fn new(weight: Parameter, transposed: bool, r: usize) -> Adapter {
        let rows = weight.ty().shape[0];
        let columns = weight.ty().shape[1];
        let (from, to) = if transposed { (rows, columns) } else { (columns, rows) };
        let first = Init::kaiming_uniform(Nonlinearity::LeakyRelu(5f64.sqrt()), Fan::In);
        let a = Parameter::new([r, from], first);
        let b = Parameter::new([to, r], Init::zeros());
        Adapter { weight, transposed, a, b }
    }

    /// The update of the weight, `scale·B·A`.
    fn update(&self, scale: f64) -> LowRank {
        let Adapter { a, b, transposed, .. } = self;
        LowRank { a: a.clone(), b: b.clone(), scale, transposed: *transposed }
    }
}

/// Restores the updates that weights had before, also after a panic.
struct UpdateGuard(Vec<(Parameter, Option<LowRank>)>);

impl Drop for UpdateGuard {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(weight, update)| weight.set_low_rank(update));
    }
}

impl<M: Module> Lora<M> {
    /// Freezes the model, and adds updates to the weights whose names match one of the patterns, in
    /// which `*` matches any text: `*.q_proj.weight`.
    ///
    /// # Errors
    /// A pattern matches no parameter, or one that is not a matrix; `r` is 0.
    pub fn new(model: M, patterns: &[&str], r: usize, alpha: f64) -> Result<Lora<M>> {
        if r == 0 {
            return Err(error::config("`r` is 0, expected a rank of at least 1"));
        }
        let parameters = model.parameters();
        let conv1d = layers_of_conv1d(&model);
        let names = parameters.iter().map(|(name, _)| name.as_str());
        if let Some(message) =
            patterns.iter().find_map(|pattern| pattern::check_pattern(pattern, names.clone()))
        {
            return Err(error::config(message));
        }
        let mut adapters = BTreeMap::new();
        for (name, weight) in &parameters {
            if !patterns.iter().any(|pattern| pattern::matches_pattern(pattern, name)) {
                continue;
            }
            let (Some(layer), 2) = (name.strip_suffix(".weight"), weight.ty().shape.rank()) else {
                let message =
                    format!("`{name}` is {}, expected the weight of a linear layer", weight.ty());
                return Err(error::config(message));
            };
            let transposed = conv1d.iter().any(|conv1d| conv1d == layer);
            adapters.insert(layer.to_owned(), Adapter::new(weight.clone(), transposed, r));
        }
        model.set_requires_grad(false);
        Ok(Lora {
            model,
            adapters: Adapters(adapters),
            scales: Scales(BTreeMap::new()),
            r,
            alpha,
            use_rslora: false,
            init: InitialWeights::Random,
            modules_to_save: Vec::new(),
        })
    }

    /// Whether the update is `alpha/√r·B·A`, so that larger ranks learn as fast as small ones
    /// (Kalajdzievski 2023); initially false.
    #[must_use]
    pub fn use_rslora(mut self, use_rslora: bool) -> Lora<M> {
        self.use_rslora = use_rslora;
        self
    }

    /// The factor of `B·A`.
    fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// Trains parts of the model as a whole, such as a new classifier, and saves them next to the
    /// updates: peft's `modules_to_save`. Each name is the full name of a module, or its last
    /// components.
    ///
    /// ```
    /// use fulmen_models::bert::Config;
    /// use fulmen_models::{AutoModelForSequenceClassification, Lora, Pretrained};
    /// use fulmen_nn::Module;
    ///
    /// let config = Config { hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, ..Config::roberta() };
    /// let model = AutoModelForSequenceClassification::new(config)?;
    /// let lora = Lora::new(model, &["*.query.weight"], 2, 4.0)?.modules_to_save(&["classifier"])?;
    /// // The matrices A and B, and the weights and biases of the classifier's two layers.
    /// assert_eq!(lora.parameters().iter().filter(|(_, parameter)| parameter.requires_grad()).count(), 6);
    /// # Ok::<(), fulmen_models::Error>(())
    /// ```
    ///
    /// # Errors
    /// The model has no such module, or its weight is tied to another module's: peft would train a
    /// copy that is not tied.
    pub fn modules_to_save(mut self, names: &[&str]) -> Result<Lora<M>> {
        self.modules_to_save = names.iter().map(|&name| name.to_owned()).collect();
        let parameters = all_parameters(&self.model);
        let is_missing = |module: &&&str| !parameters.iter().any(|(name, _)| is_in(name, module));
        if let Some(name) = names.iter().find(is_missing) {
            return Err(error::config(format!(
                "`modules_to_save` names `{name}`, but the model has no such module"
            )));
        }
        if let Some(name) = self.tied_module() {
            return Err(error::config(format!(
                "`modules_to_save` names `{name}`, whose weight is tied to another module's; peft trains a copy \
                 that is not tied, which is not supported"
            )));
        }
        let whole = self.adapter_file().whole;
        if let Some((name, _)) = whole.iter().find(|(_, part)| !part.ty().dtype.is_float()) {
            return Err(error::config(format!(
                "`modules_to_save` trains `{name}`, which is int8; call it before `quantize_int8`"
            )));
        }
        whole.iter().for_each(|(_, parameter)| parameter.set_requires_grad(true));
        Ok(self)
    }

    /// The first of `modules_to_save` with a weight that has several names.
    fn tied_module(&self) -> Option<&String> {
        let names = all_parameters(&self.model);
        self.modules_to_save.iter().find(|module| {
            let mut parts = names.iter().filter(|(name, _)| is_in(name, module));
            parts.any(|(_, part)| names.iter().filter(|(_, other)| other.is(part)).count() > 1)
        })
    }

    fn adapter_file(&self) -> AdapterFile<'_> {
        let is_whole = |name: &str| self.modules_to_save.iter().any(|module| is_in(name, module));
        let whole =
            self.model.parameters().into_iter().filter(|(name, _)| is_whole(name)).collect();
        AdapterFile { adapters: &self.adapters, whole }
    }

    /// Loads an adapter that peft or [`save_pretrained`](Lora::save_pretrained) wrote, for its
    /// model. If it was initialized as PiSSA or OLoRA, the initial update is subtracted from the
    /// model's weights, as in peft.
    ///
    /// # Errors
    /// A file is missing or damaged, or asks for an unsupported feature; the adapter belongs to a
    /// different model.
    #[track_caller]
    pub fn from_folder(model: M, folder: impl AsRef<Path>) -> Result<Lora<M>> {
        let file = folder.as_ref().join(CONFIG);
        let config: Config = read_json(&read_object(&file)?, &[]).map_err(|e| e.in_file(&file))?;
        let lora = Lora::of_config(model, config).map_err(|e| e.in_file(&file))?;
        load_weights(&lora.adapter_file(), folder.as_ref().join(WEIGHTS), Strictness::Strict)?;
        Ok(lora)
    }

    /// The adapter that a config describes, without values.
    fn of_config(model: M, config: Config) -> Result<Lora<M>> {
        config.check()?;
        let whole: Vec<&str> =
            config.modules_to_save.iter().flatten().map(String::as_str).collect();
        let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
        let is_target = |name: &&String| {
            let layer = name.strip_suffix(".weight").unwrap_or_default();
            let is_named =
                |target: &String| layer == target || layer.ends_with(&format!(".{target}"));
            config.target_modules.iter().any(is_named)
                && !whole.iter().any(|module| is_in(name, module))
        };
        let targets: Vec<&str> = names.iter().filter(is_target).map(String::as_str).collect();
        let mut lora = Lora::new(model, &targets, config.r, config.lora_alpha)?
            .use_rslora(config.use_rslora.unwrap_or_default())
            .modules_to_save(&whole)?;
        lora.init = config.init_lora_weights;
        lora.subtract_initial_updates()?;
        Ok(lora)
    }

    /// Subtracts the updates with which PiSSA and OLoRA begin from the model's weights.
    fn subtract_initial_updates(&self) -> Result<()> {
        if self.init == InitialWeights::Random {
            return Ok(());
        }
        for (layer, adapter) in &self.adapters.0 {
            if adapter.transposed && self.init == InitialWeights::Olora {
                return Err(error::config(format!(
                    "`init_lora_weights` is `olora`, which is not possible for `{layer}`: its weight is [in, out]"
                )));
            }
            let weight = adapter.weight.get();
            let rest = self
                .without_initial_update(&weight)
                .map_err(|e| e.in_key(&format!("{layer}.weight")))?;
            adapter.weight.set(rest);
        }
        Ok(())
    }

    /// A weight without its initial update, with the same dtype.
    fn without_initial_update(&self, weight: &Tensor) -> Result<Tensor> {
        let failed = |e: fulmen_tensor::Error| error::config(e.to_string());
        let values = weight.eval().map_err(failed)?.to_f64();
        let matrix = Matrix { rows: weight.size(0), columns: weight.size(1), values };
        let initial_update: Vec<f64> = match self.init {
            InitialWeights::Pissa => {
                let part = matrix.leading_part(self.r);
                let message = "its largest singular values are too close for `init_lora_weights`";
                part.ok_or_else(|| error::config(message))?.values
            }
            _ => {
                let scale = self.scale();
                matrix.first_part(self.r).values.iter().map(|value| scale * value).collect()
            }
        };
        let rest = matrix.values.iter().zip(initial_update).map(|(value, part)| value - part);
        let rest: Vec<f32> = rest.map(|value| value as f32).collect();
        let rest = Literal::from_slice(&rest, weight.shape()).map_err(failed)?.to_tensor();
        let rest = rest.to_dtype(weight.dtype()).eval().map_err(failed)?;
        Ok(rest.to_tensor())
    }

    /// Writes the updates, and the parts that are trained whole, into a folder, which is created if
    /// needed. peft's `PeftModel.from_pretrained` can load it.
    ///
    /// # Errors
    /// The folder cannot be written; an update has no value.
    #[track_caller]
    pub fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|e| error::io("create", folder, e))?;
        save_weights(&self.adapter_file(), folder.join(WEIGHTS))?;
        let targets: Vec<&String> = self.adapters.0.keys().collect();
        let config: Value = json!({
            "peft_type": "LORA",
            "r": self.r,
            "lora_alpha": self.alpha,
            "use_rslora": self.use_rslora,
            "init_lora_weights": self.init,
            "target_modules": targets,
            "fan_in_fan_out": self.adapters.0.values().any(|adapter| adapter.transposed),
            "bias": "none",
            "modules_to_save": (!self.modules_to_save.is_empty()).then_some(&self.modules_to_save),
            "inference_mode": true,
        });
        let file = folder.join(CONFIG);
        let text = format!("{config:#}\n");
        fulmen_durable::write(&file, None, |f| f.write_all(text.as_bytes()))
            .map_err(|e| error::io("write", &file, e))
    }

    /// Stores the frozen weights of linear layers and embeddings as int8, with an f32 scale for each
    /// output feature, or row of an embedding. The memory for them is a quarter of that in f32. The
    /// updates are trained as before.
    ///
    /// With `w` a row of a weight, the scale is `max|w|/127`, and the integers are `w/scale`, rounded to
    /// the nearest, halves to even. Linear layers multiply their product by the scales, so the
    /// weights are never in memory in another dtype. Weights of other layers (GPT-2's `Conv1D`,
    /// experts) and of [`modules_to_save`](Lora::modules_to_save), which comes before, keep their dtype.
    ///
    /// Values that are on the host, such as those of a folder, are converted there, one weight at a
    /// time. Saved updates do not depend on it. [`merge_and_unload`](Lora::merge_and_unload), or a
    /// model that is saved within [`apply`](Lora::apply), has the weights that the integers mean.
    ///
    /// ```
    /// use fulmen_models::decoder::{Config, Decoder};
    /// use fulmen_models::{Lora, Pretrained};
    /// use fulmen_nn::Module;
    ///
    /// let config = Config { vocab_size: 50, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 4, ..Config::default() };
    /// let model = Decoder::new(config)?;
    /// model.initialize(0); // or `Decoder::from_folder`
    /// let lora = Lora::new(model, &["*_proj.weight"], 2, 4.0)?.quantize_int8()?;
    /// lora.initialize(1);
    /// let weight = lora.model().model.layers[0].mlp.dense().unwrap().up_proj.weight.ty();
    /// assert_eq!(weight.to_string(), "i8[32, 16]");
    /// # Ok::<(), fulmen_models::Error>(())
    /// ```
    ///
    /// # Errors
    /// The model has no such weight; a value is infinite or NaN, or cannot be read.
    #[track_caller]
    pub fn quantize_int8(mut self) -> Result<Lora<M>> {
        let names = all_parameters(&self.model);
        let layers = layers_with_rows(&self.model);
        let in_layers: Vec<&Parameter> = names
            .iter()
            .filter(|(name, _)| {
                let layer = name.strip_suffix(".weight");
                layer.is_some_and(|layer| layers.iter().any(|other| other == layer))
            })
            .map(|(_, weight)| weight)
            .collect();
        for (name, weight) in self.model.parameters() {
            let is_frozen = !weight.requires_grad() && weight.ty().dtype.is_float();
            if is_frozen && in_layers.iter().any(|other| other.is(&weight)) {
                let failed = |e| error::config(format!("`{name}`: {e}"));
                let scale = weight.quantize_int8().map_err(failed)?;
                self.scales.0.insert(name, scale);
            }
        }
        if self.scales.0.is_empty() {
            return Err(error::config(
                "the model has no frozen weight of a linear layer or an embedding to store as int8",
            ));
        }
        Ok(self)
    }

    /// Applies `f` to the model with its updates.
    #[track_caller]
    pub fn apply<T>(&self, f: impl FnOnce(&M) -> T) -> T {
        let scale = self.scale();
        let adapters = self.adapters.0.values();
        let before = adapters.map(|adapter| (adapter.weight.clone(), adapter.weight.low_rank()));
        let _guard = UpdateGuard(before.collect());
        for adapter in self.adapters.0.values() {
            adapter.weight.set_low_rank(Some(adapter.update(scale)));
        }
        f(&self.model)
    }

    /// The model without its updates; after [`from_folder`](Lora::from_folder) with PiSSA or OLoRA,
    /// also without the initial ones.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model with the updates permanently added to its weights. Its parameters stay frozen.
    #[track_caller]
    pub fn merge_and_unload(self) -> M {
        self.model.parameters().iter().for_each(|(_, weight)| weight.dequantize());
        let parameters = self.adapters.0.values().map(|adapter| adapter.weight.clone());
        let values: Vec<Tensor> =
            self.apply(|_| parameters.clone().map(|weight| weight.get()).collect());
        parameters.zip(values).for_each(|(weight, value)| weight.set(value));
        self.model
    }
}

/// All parameters with all their names.
fn all_parameters(model: &impl Module) -> Vec<(String, Parameter)> {
    struct Parameters(Vec<(String, Parameter)>);
    impl Visitor for Parameters {
        fn parameter(&mut self, name: &str, parameter: &Parameter) {
            self.0.push((name.into(), parameter.clone()));
        }
    }
    let mut parameters = Parameters(Vec::new());
    model.visit(&mut Visit::new(&mut parameters));
    parameters.0
}

/// Whether a parameter is in the module with this name, or with these last components of its name.
fn is_in(parameter: &str, module: &str) -> bool {
    format!(".{parameter}").contains(&format!(".{module}."))
}

/// The names of the layers whose weights are `[in, out]`.
fn layers_of_conv1d(model: &impl Module) -> Vec<String> {
    layers_of_types(model, &["::Conv1D"])
}

/// The names of the layers whose weights have a row for each output feature, or that are embeddings.
fn layers_with_rows(model: &impl Module) -> Vec<String> {
    layers_of_types(model, &["::Linear", "::Embedding"])
}

/// The names of the layers whose types end like this.
fn layers_of_types(model: &impl Module, types: &'static [&'static str]) -> Vec<String> {
    struct Layers {
        types: &'static [&'static str],
        found: Vec<String>,
    }
    impl Visitor for Layers {
        fn part(&mut self, name: &str, type_name: &'static str) {
            if self.types.iter().any(|end| type_name.ends_with(end)) {
                self.found.push(name.into());
            }
        }
    }
    let mut layers = Layers { types, found: Vec::new() };
    model.visit(&mut Visit::new(&mut layers));
    layers.found
}
