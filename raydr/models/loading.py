"""Loading of Hugging Face networks with every weight from their files.

Transformers draws missing weights at random, with a warning. Here a missing weight is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import filterfalse, takewhile
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.checkpoint import naming
from raydr.models.foreign_settings import ENCODERS_ALONE
from raydr.models.weight_checks import check_adapters, check_type, check_types, check_values, check_weights

#: Maximal sizes, above those of any network.
_MOST = {"num_hidden_layers": 1000, "hidden_size": 2**17, "num_attention_heads": 2**12, "vocab_size": 2**24}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence Transformers' warnings and progress bars inside the block; raydr checks what they warn of."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    has_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def check_shape(config: Any, what: str) -> None:
    """Refuse an architecture of an impossible size before it is built.

    Raises:
        ModelError: a size is no whole number in its range.
    """
    for key, most in _MOST.items():
        size = getattr(config, key, None)
        if size is not None and not (type(size) is int and 1 <= size <= most):
            raise ModelError(
                f"{what}: {key} is {size!r} in its config.json; expected a whole number from 1 to {most:,}"
            )


def load_network(
    load: Callable[..., Any], source: str, what: str, is_new: Callable[[str], bool] = lambda key: False, **options: Any
) -> tuple[Any, set[str]]:
    """Load a network, and refuse it unless all weights come from the files.

    A prefix that all names in the files share, such as DDP's ``module.``, is removed.

    Args:
        load: ``from_pretrained`` of a class.
        source: folder or name on the hub.
        what: name of the checkpoint, for messages.
        is_new: function from a weight's name to whether the weight may be missing.
        options: arguments of ``load``.

    Returns:
        The network, and the names of the weights that were drawn at random.

    Raises:
        ModelError: the network cannot be loaded, or its files do not hold exactly the architecture's weights, as finite
            numbers.
    """
    # :func:`check_weights` refuses other shapes and names the weight, which the library's error does not.
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True, **options}
    with naming(what), quiet_transformers():
        network, info = load(source, **options)
        renaming = options.pop("key_mapping", None) or {}
        for prefix in (
            _shared_prefixes(info["unexpected_keys"]) if set(filterfalse(is_new, info["missing_keys"])) else ()
        ):
            mapping = {f"^{prefix.replace('.', '[.]')}": "", **renaming}
            other, of_other = load(source, key_mapping=mapping, **options)
            if all(map(is_new, of_other["missing_keys"])):
                # Saving would otherwise restore the names of the file.
                other._weight_conversions = None
                network, info = other, of_other
                break
        check_adapters(network, what)
        check_weights(network, info, what, is_new)
        check_types(network, source, what)
    check_values(network, what)
    return network, set(info["missing_keys"])


def _shared_prefixes(keys: set[str]) -> list[str]:
    """Return the prefixes that all keys share, each with its final dot, longest first.

    >>> _shared_prefixes({"module.bert.layer.0", "module.bert.embeddings"})
    ['module.bert.', 'module.']
    """
    pairs = zip(min(keys).split(".")[:-1], max(keys).split(".")[:-1], strict=False) if keys else ()
    words = [first for first, last in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return [".".join(words[:num]) + "." for num in range(len(words), 0, -1)]


def load_head(file: str, head: nn.Module, what: str, optional: tuple[str, ...] = ()) -> None:
    """Load a small module, such as a linear layer; the prefix ``linear.`` of names is removed.

    Args:
        file: file of safetensors or PyTorch.
        head: module to fill.
        what: name of the module, for messages.
        optional: weights that are zero if the file lacks them.

    Raises:
        ModelError: the file does not hold exactly the module's weights, as finite numbers.
    """
    with naming(what):
        tensors = load_file(file) if file.endswith("safetensors") else torch.load(file, weights_only=True)
        weights = {key.removeprefix("linear."): value for key, value in tensors.items()}
        own = head.state_dict()
        if weights.keys() | set(optional) != own.keys():
            raise ModelError(f"{what}: {file} holds {', '.join(weights)}; expected {', '.join(own)}")
        weights = {key: torch.zeros_like(own[key]) for key in optional} | weights
        for key, value in weights.items():
            if value.shape != own[key].shape:
                shapes = f"{tuple(value.shape)} in {file} and {tuple(own[key].shape)} by the settings"
                raise ModelError(f"{what}: {key} has the shape {shapes}")
            check_type(key, value, file, what)
        head.load_state_dict(weights)
        check_values(head, what)


def encoder_class(config: Any, trust_remote_code: bool = False) -> Any:
    """Return the class that computes a text's hidden states; for an encoder-decoder, the class of its encoder.

    Args:
        config: config of Transformers.
        trust_remote_code: whether code of the checkpoint may run.
    """
    import transformers

    alone = getattr(transformers, f"{type(config).__name__.removesuffix('Config')}EncoderModel", None)
    if alone is not None:
        # T5Gemma's encoder refuses the config of an encoder-decoder.
        config.is_encoder_decoder = False
        return alone
    if not getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModel
    with torch.device("meta"):
        whole = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
    return type(whole.get_encoder())


def saved_prefix(network: nn.Module) -> str:
    """Return the prefix with which other programs expect an encoder's weights in a file."""
    config: Any = network.config
    is_half = getattr(config, "is_encoder_decoder", False)
    return "encoder." if is_half and config.model_type not in ENCODERS_ALONE else ""


def load_encoder(source: str, what: str, trust_remote_code: bool) -> tuple[Any, set[str]]:
    """Load an encoder in float32; return it and the names of weights that were drawn at random (a pooler's).

    Args:
        source: folder or name on the hub.
        what: name of the checkpoint, for messages.
        trust_remote_code: whether code of the checkpoint may run.

    Raises:
        ModelError: the encoder cannot be loaded, or its files lack a weight.
    """
    from transformers import AutoConfig

    extra = {"trust_remote_code": trust_remote_code}
    with naming(what), quiet_transformers():
        config = AutoConfig.from_pretrained(source, **extra)
        check_shape(config, what)
        if getattr(config, "model_type", "") == "dpr" and config.projection_dim:
            raise ModelError(f"{what} has DPR's projection (projection_dim), which raydr does not support")
        loader = encoder_class(config, trust_remote_code)
    options: dict[str, Any] = {"config": config, "dtype": torch.float32, **extra}
    if getattr(config, "is_encoder_decoder", False):
        options["key_mapping"] = {r"^(model\.)?encoder\.": "", r"^(model\.)?shared\.": "embed_tokens."}
    return load_network(loader.from_pretrained, source, what, lambda key: "pooler." in key, **options)


def named_weights(network: Any) -> dict[str, Tensor]:
    """Return the weights of a network by name; tied weights have a single name."""
    tied = getattr(network, "all_tied_weights_keys", None) or {}
    return {key: value for key, value in network.state_dict().items() if key not in tied}
