//! [`Pretrained`]: loads Hugging Face model folders, a `config.json` and weights, and saves models
//! in a form that transformers loads.
//!
//! Out of scope: weight files (`fulmen_nn::weights`) and tokenizers (`fulmen-text`).

use std::io::{self, Write as _};
use std::path::Path;

use fulmen_nn::weights::{LoadReport, StateDict, Strictness, save_sharded_tensors, save_tensors};
use fulmen_nn::{Module, Parameter};
use fulmen_tensor::Tensor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::error::InConfig as _;
use crate::settings::{FIXED_IN_ALL, HARMLESS_SETTINGS, check_unread, wrong_value};
use crate::{Result, error};

/// The file with the settings of a model.
const CONFIG: &str = "config.json";

/// The size limit of a weight file, which is also transformers' default.
const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// A model that Hugging Face's transformers also has. Parameters and settings have the same names
/// as there.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::gpt2::{Config, Gpt2};
/// use fulmen_nn::Module;
///
/// let config = Config { vocab_size: 50, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2, ..Config::default() };
/// let model = Gpt2::new(config)?;
/// model.initialize(0);
///
/// let folder = tempfile::tempdir()?;
/// model.save_pretrained(folder.path())?; // transformers: GPT2LMHeadModel.from_pretrained(folder)
/// let again = Gpt2::from_folder(folder.path())?;
/// assert_eq!(again.config().n_embd, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Pretrained: Module + Sized {
    /// The settings in `config.json`: its names and, for missing keys, its defaults.
    type Config: Serialize + DeserializeOwned;

    /// The key of `config.json` with the kind of the model: `model_type` in transformers.
    const MODEL_TYPE_KEY: &'static str = "model_type";

    /// The values of that key for this model.
    const MODEL_TYPES: &'static [&'static str];

    /// The file that the weights are saved in.
    const WEIGHTS: &'static str = "model.safetensors";

    /// Keys that only one value is supported for, with that value in JSON.
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = &[];

    /// Keys that this kind of model may have and that do not change what it computes. Those of all
    /// kinds, such as `torch_dtype`, need not be listed.
    const HARMLESS_SETTINGS: &'static [&'static str] = &[];

    /// Other names of keys, each with the name in the config: transformers' `attribute_map`.
    const SETTING_ALIASES: &'static [(&'static str, &'static str)] = &[];

    /// The first part of most names, which files of the model without a head omit.
    const BASE_MODEL_PREFIX: &'static str = "";

    /// Prefixes of the names of the head's weights. If a folder has a model for another task, the
    /// head is initialized again.
    const HEAD: &'static [&'static str];

    /// Parts of names in files that the model does not need: heads of other tasks, masks, tables of
    /// positions.
    const IGNORED_KEYS: &'static [&'static str] = &[];

    /// The current name of a parameter that older files call `name`.
    fn current_name(name: &str) -> String {
        name.into()
    }

    /// The values of a folder in the form that the model has them, for files that have a tensor for
    /// each expert, for example.
    ///
    /// # Errors
    /// The values do not fit together.
    fn read_values(values: StateDict) -> Result<StateDict> {
        Ok(values)
    }

    /// The values of a folder for a parameter of the model: the opposite of
    /// [`read_values`](Pretrained::read_values).
    fn written_values(&self, name: String, value: Tensor) -> Vec<(String, Tensor)> {
        vec![(name, value)]
    }

    /// Builds the model. Its parameters have no values yet.
    ///
    /// # Errors
    /// The settings contradict each other; the message names them.
    fn new(config: Self::Config) -> Result<Self>;

    /// The settings.
    fn config(&self) -> &Self::Config;

    /// The keys of a file that are not settings of this model. Loading refuses a key that is in none
    /// of the lists of this trait, because it may mean another model.
    fn other_settings(config: &Self::Config) -> &Map<String, Value>;

    /// transformers' name of the class, for `config.json`; empty for models of other libraries.
    fn architecture(&self) -> String {
        String::new()
    }

    /// The names of the head's parameters, which are trained if the rest is frozen.
    fn head_parameters(&self) -> Vec<(String, Parameter)> {
        self.parameters().into_iter().filter(|(name, _)| is_head_parameter::<Self>(name)).collect()
    }

    /// The settings of a folder downloaded from Hugging Face.
    ///
    /// # Errors
    /// The config is missing, belongs to a different model, or asks for an unsupported feature: the
    /// message names the key.
    fn config_from_folder(folder: impl AsRef<Path>) -> Result<Self::Config> {
        read_config::<Self>(folder.as_ref())
    }

    /// Loads a folder downloaded from Hugging Face: `config.json`, and the weights as
    /// `model.safetensors`, `pytorch_model.bin`, or an index of several such files.
    ///
    /// Large weights stay in the files until devices need them, so keep the folder until then; see
    /// [`StateDict`]. Parameters are f32, even if the files have a different dtype;
    /// [`Module::to_dtype`] changes that. The model is in evaluation mode, as in transformers; the Trainer switches it. Names
    /// may have the prefix `module.` (DistributedDataParallel) or `_orig_mod.` (`torch.compile`).
    ///
    /// # Errors
    /// A file is missing or damaged. The config belongs to a different model, or asks for an
    /// unsupported feature: the message names the key. A parameter is missing in the files,
    /// unexpected, or has a different shape: the message lists all of them.
    #[track_caller]
    fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let model = Self::new(read_config::<Self>(folder)?)?;
        load(&model, folder, Strictness::Strict)?;
        model.eval();
        Ok(model)
    }

    /// Like [`from_folder`](Pretrained::from_folder), for another task: `change` sets the number of
    /// labels, for example. A head that the files do not have, or have in a different shape, gets
    /// its initial values from `initialize`, which the Trainer calls.
    ///
    /// # Errors
    /// Those of [`from_folder`](Pretrained::from_folder), except for the head's parameters.
    #[track_caller]
    fn from_folder_with(
        folder: impl AsRef<Path>,
        change: impl FnOnce(&mut Self::Config),
    ) -> Result<Self> {
        let folder = folder.as_ref();
        let mut config = read_config::<Self>(folder)?;
        change(&mut config);
        let model = Self::new(config)?;
        let report = load(&model, folder, Strictness::Lenient)?;
        let mismatched = report.mismatched.iter().map(|mismatch| &mismatch.name);
        let all = report.missing.iter().chain(&report.unexpected).chain(mismatched);
        let mut others = all.filter(|name| !is_head_parameter::<Self>(name));
        if others.next().is_some() || !report.conflicting.is_empty() {
            load(&model, folder, Strictness::Strict)?;
        }
        model.eval();
        Ok(model)
    }

    /// Writes `config.json` and the weights into a folder, which is created if needed:
    /// `model.safetensors`, or several files of at most 5 GB with an index. transformers'
    /// `from_pretrained` can load it.
    ///
    /// # Errors
    /// The folder cannot be written or already has weights in another form; a parameter has no
    /// value.
    #[track_caller]
    fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        let mut config = to_json_object(self.config())?;
        config.entry(Self::MODEL_TYPE_KEY).or_insert_with(|| Self::MODEL_TYPES[0].into());
        let architecture = self.architecture();
        if !architecture.is_empty() {
            config.insert("architectures".into(), json!([architecture]));
        }
        let parameters = self.parameters();
        let dtype = parameters.first().map(|(_, parameter)| parameter.dtype());
        if let Some(name) = dtype.filter(|_| !architecture.is_empty()).and_then(torch_dtype) {
            config.remove("torch_dtype");
            config.insert("dtype".into(), name.into());
        }
        let bytes: usize = parameters
            .iter()
            .map(|(_, p)| p.ty().shape.num_elements() * p.dtype().size_in_bytes())
            .sum();
        let weights = parameters.into_iter().map(|(name, parameter)| (name, parameter.get()));
        let buffers = self.buffers().into_iter().map(|(name, buffer)| (name, buffer.get()));
        let values = weights.chain(buffers);
        let values = values.flat_map(|(name, value)| self.written_values(name, value)).collect();
        if bytes as u64 > MAX_SHARD_BYTES {
            save_sharded_tensors(values, folder, MAX_SHARD_BYTES)?;
        } else {
            std::fs::create_dir_all(folder).map_err(|e| error::io("create", folder, e))?;
            for other in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
                if folder.join(other).exists() {
                    let message = format!(
                        "the folder already has a different model ({other}); choose a new folder"
                    );
                    let error = io::Error::new(io::ErrorKind::AlreadyExists, message);
                    return Err(error::io("write", folder, error));
                }
            }
            save_tensors(values, folder.join(Self::WEIGHTS))?;
        }
        let file = folder.join(CONFIG);
        let text = format!("{:#}\n", Value::Object(config));
        fulmen_durable::write(&file, None, |f| f.write_all(text.as_bytes()))
            .map_err(|e| error::io("write", &file, e))
    }
}

fn is_head_parameter<M: Pretrained>(name: &str) -> bool {
    M::HEAD.iter().any(|head| name.starts_with(head))
}

/// The config of a folder.
fn read_config<M: Pretrained>(folder: &Path) -> Result<M::Config> {
    let file = folder.join(CONFIG);
    let mut json = read_object(&file)?;
    let key = M::MODEL_TYPE_KEY;
    check_model_type::<M>(json.get(key)).map_err(|e| e.in_file(&file))?;
    let mut used_aliases = Vec::new();
    for &(alias, name) in M::SETTING_ALIASES {
        // As in transformers, the alias takes precedence.
        if let Some(value) = json.remove(alias).filter(|value| !value.is_null()) {
            json.insert(name.into(), value);
            used_aliases.push((alias, name));
        }
    }
    let fixed = [M::FIXED_SETTINGS, FIXED_IN_ALL].concat();
    let harmless = [HARMLESS_SETTINGS, M::HARMLESS_SETTINGS, &[M::MODEL_TYPE_KEY]];
    let config: M::Config = read_json(&json, &used_aliases).map_err(|e| e.in_file(&file))?;
    check_unread(M::other_settings(&config), &fixed, &harmless).map_err(|e| e.in_file(&file))?;
    Ok(config)
}

/// Checks that a config is for this kind of model.
fn check_model_type<M: Pretrained>(given: Option<&Value>) -> Result<()> {
    let given = given.unwrap_or(&Value::Null);
    if given.as_str().is_some_and(|name| M::MODEL_TYPES.contains(&name)) {
        return Ok(());
    }
    let found = match given {
        Value::Null => "missing".into(),
        Value::String(name) => format!("`{name}`"),
        other => other.to_string(),
    };
    let key = M::MODEL_TYPE_KEY;
    let expected = M::MODEL_TYPES.join("`, `");
    Err(error::config(format!("`{key}` is {found}, expected `{expected}`")))
}

/// The size limit of a folder's JSON files about a model.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The JSON object in a file.
pub(crate) fn read_object(file: &Path) -> Result<Map<String, Value>> {
    let text = fulmen_durable::read_regular(file, MAX_CONFIG_BYTES)
        .map_err(|e| error::io("read", file, e))?;
    serde_json::from_slice(&text)
        .map_err(|e| error::config(format!("not a valid config: {e}")).in_file(file))
}

/// Settings with defaults for all keys. `aliases` are pairs of a key in the file and its name in
/// the settings.
///
/// # Errors
/// A value is of another type. The message has the key in the file, the value, and what is
/// expected.
pub(crate) fn read_json<C: DeserializeOwned>(
    json: &Map<String, Value>,
    aliases: &[(&str, &str)],
) -> Result<C> {
    serde_json::from_value(Value::Object(json.clone())).map_err(|error| {
        let mut keys = Vec::new();
        let mistake = wrong_value::<C>(&mut keys, json, aliases);
        error::config(mistake.unwrap_or_else(|| error.to_string()))
    })
}

fn to_json_object(config: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(config) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(error::config(format!("it is {other}, not a table"))),
        Err(error) => Err(error::config(error.to_string())),
    }
}

/// Loads the values of the folder's files into the model.
#[track_caller]
fn load<M: Pretrained>(model: &M, folder: &Path, strictness: Strictness) -> Result<LoadReport> {
    let names: Vec<String> = all_names(model);
    let has = |name: &str| names.iter().any(|known| known == name);
    let mut values = StateDict::read(folder)?;
    for wrapper in ["module.", "_orig_mod."] {
        if values.iter().all(|(name, _)| name.starts_with(wrapper)) && !values.is_empty() {
            values = values.rename(wrapper, "")?;
        }
    }
    let renamed_values = M::read_values(values)?.rename_with(|name| {
        let current_name = M::current_name(name);
        // The first files of BERT use TensorFlow's names for the parameters of LayerNorm.
        let name = match current_name.rsplit_once('.') {
            Some((layer, "gamma")) => format!("{layer}.weight"),
            Some((layer, "beta")) => format!("{layer}.bias"),
            _ => current_name,
        };
        let prefixed = format!("{}.{name}", M::BASE_MODEL_PREFIX);
        match (has(&name), has(&prefixed)) {
            (false, true) => Some(prefixed),
            (false, false) if M::IGNORED_KEYS.iter().any(|part| name.contains(part)) => None,
            _ => Some(name),
        }
    })?;
    renamed_values.load_into(model, strictness)
}

/// The names of all parameters and buffers, including all names of tied ones.
fn all_names(module: &impl Module) -> Vec<String> {
    struct Names(Vec<String>);
    impl fulmen_nn::Visitor for Names {
        fn parameter(&mut self, name: &str, _: &fulmen_nn::Parameter) {
            self.0.push(name.into());
        }
        fn buffer(&mut self, name: &str, _: &fulmen_nn::Buffer) {
            self.0.push(name.into());
        }
    }
    let mut names = Names(Vec::new());
    module.visit(&mut fulmen_nn::Visit::new(&mut names));
    names.0
}

/// PyTorch's name of a dtype that parameters have.
fn torch_dtype(dtype: fulmen_tensor::DType) -> Option<&'static str> {
    use fulmen_tensor::DType;
    match dtype {
        DType::F32 => Some("float32"),
        DType::Bf16 => Some("bfloat16"),
        DType::F16 => Some("float16"),
        DType::F64 => Some("float64"),
        _ => None,
    }
}

#[cfg(all(test, feature = "bert", feature = "decoder", feature = "gpt2", feature = "t5"))]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use fulmen_nn::safetensors;
    use fulmen_tensor::Runtime;

    use super::*;
    use crate::bert::BertForSequenceClassification;
    use crate::decoder::Decoder;
    use crate::gpt2::Gpt2;
    use crate::marian::Marian;
    use crate::reference::{ExpectedValues, folder};
    use crate::roberta::RobertaForMaskedLm;
    use crate::t5::T5;

    /// A copy of a reference folder with a changed config.
    fn changed(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        for entry in std::fs::read_dir(folder(name)).into_iter().flatten().flatten() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name()))
                .unwrap_or_else(|e| panic!("{e}"));
        }
        let file = copy.path().join(CONFIG);
        let mut json = read_object(&file).unwrap_or_else(|e| panic!("{e}"));
        change(&mut json);
        std::fs::write(&file, Value::Object(json).to_string()).unwrap_or_else(|e| panic!("{e}"));
        copy
    }

    #[track_caller]
    fn refusal<M: Pretrained>(folder: &Path) -> String {
        match M::from_folder(folder) {
            Ok(_) => panic!("it was loaded"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_config_that_asks_for_another_model_is_refused_with_the_key() {
        for (key, value, expected) in [
            ("model_type", json!("gpt_neo"), "`model_type` is `gpt_neo`, expected `gpt2`"),
            ("model_type", json!(2), "`model_type` is 2, expected `gpt2`"),
            ("model_type", json!(null), "`model_type` is missing, expected `gpt2`"),
            (
                "scale_attn_by_inverse_layer_idx",
                json!(true),
                "`scale_attn_by_inverse_layer_idx` is true; only false is supported",
            ),
            ("quantization_config", json!({"bits": 4}), "`quantization_config` is {\"bits\":4}"),
            (
                "activation_function",
                json!("quick_gelu"),
                "`activation_function` is \"quick_gelu\", expected one of `gelu`",
            ),
            ("n_layer", json!("two"), "`n_layer` is \"two\", expected a whole number from 0"),
            (
                "num_hidden_layers",
                json!(2.5),
                "`num_hidden_layers` is 2.5, expected a whole number",
            ),
            ("n_head", json!(3), "`n_head` is 3, which does not divide `n_embd`, 16"),
        ] {
            let copy = changed("gpt2", |config| _ = config.insert(key.into(), value));
            let text = refusal::<Gpt2>(copy.path());
            assert!(text.contains(expected), "{text}");
        }
        for name in ["dynamic", "longrope"] {
            let other =
                changed("llama", |config| config["rope_parameters"]["rope_type"] = json!(name));
            let expected = format!(
                "`rope_type` is `{name}`, expected `default`, `linear`, `llama3` or `yarn`"
            );
            assert!(refusal::<Decoder>(other.path()).contains(&expected));
        }
        let copy = changed("gpt2", |config| _ = config.insert("n_inner".into(), json!(7)));
        let text = refusal::<Gpt2>(copy.path());
        assert!(
            text.contains(
                "transformer.h.0.mlp.c_fc.weight: the model has f32[16, 7], the file f32[16, 64]"
            ),
            "{text}"
        );
        let text = refusal::<Gpt2>(Path::new("no-such-folder"));
        assert!(text.starts_with("cannot read no-such-folder"), "{text}");
    }

    #[test]
    fn a_saved_folder_is_the_model_with_what_its_config_said() {
        let directory = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let model = Decoder::from_folder(folder("gemma3")).unwrap_or_else(|e| panic!("{e}"));
        model.save_pretrained(directory.path().join("model")).unwrap_or_else(|e| panic!("{e}"));
        let loaded =
            Decoder::from_folder(directory.path().join("model")).unwrap_or_else(|e| panic!("{e}"));
        let value =
            |model: &Decoder| model.parameters().iter().map(|(_, p)| p.get()).collect::<Vec<_>>();
        for (saved, read) in value(&model).iter().zip(value(&loaded)) {
            assert_eq!(
                saved.literal().map(|l| l.bytes().to_vec()),
                read.literal().map(|l| l.bytes().to_vec())
            );
        }
        let [before, after] = [folder("gemma3"), directory.path().join("model")]
            .map(|folder| read_object(&folder.join(CONFIG)).unwrap_or_else(|e| panic!("{e}")));
        for (key, value) in before {
            assert!(
                after[&key] == value || (value.is_f64() && after[&key].as_f64() == value.as_f64()),
                "{key}"
            );
        }
    }

    /// A model with new values, its output, and its folder.
    fn save<M: Pretrained>(
        name: &str,
        to: &Path,
        forward: impl Fn(&M, &ExpectedValues) -> (Tensor, Vec<&'static str>),
    ) {
        let config = read_config::<M>(&folder(name)).unwrap_or_else(|e| panic!("{e}"));
        let model = M::new(config).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read(name);
        model.initialize(7);
        model.eval();
        let to: PathBuf = to.join(name);
        model.save_pretrained(&to).unwrap_or_else(|e| panic!("{e}"));
        let (logits, inputs) = forward(&model, &expected);
        let names = inputs
            .iter()
            .map(|name| if *name == "ids" { "input_ids" } else { name })
            .chain(["logits"]);
        let tensors: Vec<Tensor> =
            inputs.iter().map(|name| expected.tensor(name)).chain([logits]).collect();
        let values = Runtime::global()
            .and_then(|runtime| runtime.eval_many(&tensors))
            .unwrap_or_else(|e| panic!("{e}"));
        let named_values: Vec<_> = names.map(str::to_owned).zip(values).collect();
        safetensors::write(to.join("expected.safetensors"), &named_values, &BTreeMap::new())
            .unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    #[ignore = "for Python: SAVED_MODELS=FOLDER cargo test -p fulmen-models -- --ignored saved, then reference/texts.py check FOLDER"]
    fn saved_folders_for_transformers() {
        let to = PathBuf::from(
            std::env::var_os("SAVED_MODELS")
                .unwrap_or_else(|| panic!("SAVED_MODELS names no folder")),
        );
        save::<Gpt2>("gpt2", &to, |model, expected| {
            (model.forward(expected.tensor("ids")), vec!["ids"])
        });
        let deepseek = ["deepseek_v2", "deepseek_v2_lite", "deepseek_v3"];
        let llamas = ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3"];
        for name in llamas.into_iter().chain(deepseek) {
            save::<Decoder>(name, &to, |model, expected| {
                (model.forward(expected.tensor("ids")), vec!["ids"])
            });
        }
        save::<T5>("t5-gated", &to, |model, expected| {
            let names = ["input_ids", "decoder_input_ids"];
            let [ids, decoder_ids] = names.map(|name| expected.tensor(name));
            (model.forward(ids, None, decoder_ids), names.to_vec())
        });
        for name in ["marian", "marian-two"] {
            save::<Marian>(name, &to, |model, expected| {
                let names = ["input_ids", "decoder_input_ids"];
                let [ids, decoder_ids] = names.map(|name| expected.tensor(name));
                (model.forward(ids, None, decoder_ids), names.to_vec())
            });
        }
        save::<BertForSequenceClassification>("bert-classifier", &to, |model, expected| {
            let names = ["input_ids", "token_type_ids", "attention_mask"];
            let [ids, kinds, mask] = names.map(|name| expected.tensor(name));
            (model.forward(ids, Some(&kinds), Some(&mask)), names.to_vec())
        });
        save::<RobertaForMaskedLm>("roberta", &to, |model, expected| {
            let names = ["input_ids", "attention_mask"];
            let [ids, mask] = names.map(|name| expected.tensor(name));
            (model.forward(ids, Some(&mask)), names.to_vec())
        });
    }
}
