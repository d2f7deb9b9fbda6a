//! `[model]`.

use std::path::Path;

use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};
use serde::Serialize;

use crate::base::ModelSource;
use crate::settings::{Choice, FaultKind, Reader};
use crate::trainer::backend::Backend;

/// `[model]`: the model and how it is held.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSection {
    /// Where the weights come from.
    #[serde(flatten)]
    pub source: ModelSource,
    /// The backend.
    pub backend: Backend,
    /// Dtype of frozen weights, on GPUs of activations too.
    pub dtype: FloatDtype,
    /// How the frozen weights of the linear layers are quantized; `None`: not at all.
    #[serde(serialize_with = "or_none")]
    pub quant: Option<QuantFormat>,
    /// Whether the scales of 4-bit weights are quantized too.
    pub double_quant: bool,
    /// Linear layers that stay dense: whole names, or dot-separated parts of them. Only with `quant`.
    pub quant_skip: Vec<String>,
    /// Tokens that are added to the vocabulary.
    pub add_tokens: Vec<String>,
}

impl ModelSection {
    pub(super) fn read(s: &mut Reader, has_lora: bool) -> Self {
        let source = source(s);
        let quant = s
            .choice_or_none::<QuantFormat>(
                "quant",
                "Quantization of the frozen linear layers; needs `[lora]`",
                "As stored",
            )
            .also_called(&["bnb_4bit_quant_type", "load_in_4bit", "load_in_8bit"])
            .or(None);
        if let (Some(format), false) = (quant, has_lora) {
            let because =
                format!("weights quantized by model.quant = \"{format}\" cannot be trained");
            needs_lora(s, "quant", because);
        }
        let dtype = s
            .choice::<FloatDtype>(
                "dtype",
                "Dtype of the frozen weights and, on GPUs, of activations; 16 bits need `[lora]`",
            )
            .also_called(&["torch_dtype"])
            .flag("dtype")
            .or_default();
        if dtype != FloatDtype::F32 && !has_lora {
            let name = dtype.choice_name();
            let because = format!(
                "model.dtype = \"{name}\" rounds weights to 16 bits, too coarse for training them"
            );
            needs_lora(s, "dtype", because);
        }
        Self {
            source,
            backend: s
                .choice("backend", "Backend")
                .also_called(&["device"])
                .flag("backend")
                .changes_nothing()
                .or_default(),
            dtype,
            quant,
            double_quant: s
                .boolean("double_quant", "Quantize the scales of nf4 and fp4 too")
                .also_called(&["bnb_4bit_use_double_quant"])
                .or(true),
            quant_skip: quant_skip(s, quant),
            add_tokens: s
                .setting::<Vec<String>>(
                    "add_tokens",
                    "Tokens to add to the vocabulary; their rows of embedding and head are trained",
                )
                .example("[\"<tool>\"]")
                .changes_weights()
                .or_default(),
        }
    }

    /// The quantization while loading; `None`: none.
    pub fn quantization(&self) -> Option<Quantization> {
        let skip_modules = self.quant_skip.clone();
        let double_quant = self.double_quant;
        self.quant.map(|format| Quantization { format, double_quant, skip_modules })
    }
}

fn needs_lora(s: &mut Reader, key: &str, because: String) {
    let kind = FaultKind::Missing {
        key: "lora".to_owned(),
        expected: "a section [lora]",
        because,
        remedy: format!("add [lora], or remove model.{key}"),
    };
    s.fault(key, kind);
}

fn source(s: &mut Reader) -> ModelSource {
    s.at_most_one(
        ["path", "config"],
        "the weights are either read from a model folder or initialized at random",
    );
    let path = s
        .path("path", "Hugging Face folder of the base model")
        .also_called(&["model_name_or_path", "base_model"])
        .flag("model")
        .example("\"models/llama\"")
        .changes_nothing()
        .optional("the built-in example");
    let config = s
        .path("config", "`config.json` of a model to train from random weights")
        .example("\"config.json\"")
        .changes_nothing()
        .optional("none");
    let tokenizer = s
        .path("tokenizer", "Folder of the tokenizer")
        .example("\"models/llama\"")
        .changes_nothing()
        .optional("the folder of `path` or `config`");
    if path.is_none() && config.is_none() && tokenizer.is_some() {
        let because = format!(
            "model.tokenizer is given{}, and the built-in model has its own tokenizer",
            s.origin_of("tokenizer")
        );
        let kind = FaultKind::Missing {
            key: "model.path".to_owned(),
            expected: "the folder of the model",
            because,
            remedy: "set model.path (or model.config), or remove model.tokenizer".to_owned(),
        };
        s.fault("path", kind);
    }
    match (path, config) {
        (Some(path), _) => {
            ModelSource::Pretrained { tokenizer: tokenizer.unwrap_or_else(|| path.clone()), path }
        }
        (None, Some(config)) => {
            let folder = || config.parent().unwrap_or(Path::new("")).to_owned();
            ModelSource::Scratch { tokenizer: tokenizer.unwrap_or_else(folder), config }
        }
        (None, None) => ModelSource::Builtin,
    }
}

fn quant_skip(s: &mut Reader, quant: Option<QuantFormat>) -> Vec<String> {
    let names = s
        .setting::<Vec<String>>(
            "quant_skip",
            "Linear layers to keep dense: names, or dot-separated parts of them",
        )
        .also_called(&["llm_int8_skip_modules"])
        .example("[\"down_proj\"]")
        .or_default();
    if names.iter().any(String::is_empty) {
        s.refuse(
            "quant_skip",
            "names of modules",
            &format!("{names:?}"),
            "change it, or remove it",
        );
    }
    if quant.is_none() && !names.is_empty() {
        let kind = FaultKind::Missing {
            key: "model.quant".to_owned(),
            expected: "nf4, fp4 or int8",
            because: "model.quant_skip is given, and nothing is quantized".to_owned(),
            remedy: "set model.quant, or remove model.quant_skip".to_owned(),
        };
        s.fault("quant_skip", kind);
    }
    names
}

fn or_none<S: serde::Serializer>(
    quant: &Option<QuantFormat>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match quant {
        Some(quant) => quant.serialize(serializer),
        None => "none".serialize(serializer),
    }
}
