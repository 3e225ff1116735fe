"""A setting is declared once, as a field of a dataclass: its name, type, default, help, bounds and choices.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class TrainSettings:
        output_dir: str = changeable_setting(REQUIRED, "Directory for checkpoints and results.", heading=ORIGINAL)
        train_batch_size: int = setting(32, "Examples per step.", least=1, on_card=True)
        learning_rate: float | None = setting(5e-5, "Peak rate. If unset, 5e-5; RoBERTa: 1e-5.", unset=True, most=1)

A script makes its flags of the fields of one or several classes, `define_flags(TrainSettings, TaskSettings)`, and its
`main` makes the settings of the flags, `settings_of(TrainSettings, FLAGS)`. A heading begins a group of --help; the
fields that follow belong to it, and classes that use the same heading share the group. What resuming, and the card of
a trained model, make of a setting is declared with it, too.
"""

import dataclasses
import functools
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from absl import flags

from bert_tf.system import hub
from bert_tf.system.messages import naming_flag

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

flags.disclaim_key_flags()

REQUIRED = dataclasses.MISSING  # the default of a setting that must be given
ORIGINAL = "As in the original"  # the heading of its flags, the first group of --help
_FURTHER = "Further"
_KEY = "declared"  # in the metadata of a field, and the attribute of a flag

Flags = flags.FlagValues
Settings = TypeVar("Settings", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
    """The declaration of a setting, besides its name and type.

    default: holds where the setting is not given. help: for a reader of --help.
    heading: begins a group of --help.
    least, most: bounds, included. above, below: bounds, not included.
    choices: the values it can have; empty: any.
    check: gets a value and the flag ("--name"), and raises what it has against the value.
    unset: it is None where it is not given, since what holds then depends on more, as the help says ("If unset,
      ..."). The default holds where nothing else is known.
    shown: whether the default is also the flag's; else the flag has none, and the help says what holds.
    is_model: it is the path of a model, or its name on the hub, which a local folder replaces.
    model_file: it is a file that a model has, too, so that its name may stand for it: folder -> path of the file.
    may_change_on_resume: True: a resumed run is the same with another value. None: its remaining steps differ, which
      is a warning. False: the run can't go on with another value.
    on_card: True: the card of a trained model shows the value, also the default. None: it does so if the value is not
      the default, and may not change on resume. False: never; the card says it otherwise.
    """

    default: object
    help: str
    heading: str | None = None
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Collection[str] = ()
    check: Callable[[typing.Any, str], object] | None = None
    unset: bool = False
    shown: bool = True
    is_model: bool = False
    model_file: Callable[[str], str] | None = None
    may_change_on_resume: bool | None = None
    on_card: bool | None = None

    @property
    def bounds(self) -> str:
        """The bounds in words: "at least 1", "from 0 to 1"; empty without any."""
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f"from {self.least:g} to {self.most:g}"
        named = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
        return ", ".join(f"{words} {bound:g}" for words, bound in named.items() if math.isfinite(bound))

    def field(self):
        return dataclasses.field(default=None if self.unset else self.default, metadata={_KEY: self})

    def check_value(self, flag: str, value) -> None:
        """Raises if a value is out of bounds, not finite, none of the choices, or does not pass `check`."""
        if self.choices and value not in self.choices:
            raise ValueError(f"{flag}={value} must be one of {', '.join(filter(None, self.choices))}.")
        # Unset bounds are infinite, and not included, so that neither infinity nor NaN is within.
        is_number = isinstance(value, int | float)
        if is_number and not (self.least <= value <= self.most and self.above < value < self.below):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise ValueError(f"{flag}={shown} must be {self.bounds or 'a finite number'}.")
        if self.check and not self.names_model(value):
            self.check(value, flag)

    def names_model(self, value) -> bool:
        """Whether a value is the name of a model on the hub."""
        return bool((self.is_model or self.model_file) and value) and hub.is_name(value)


def setting(default, help: str, **declared) -> typing.Any:
    return Declared(default=default, help=help, **declared).field()


changeable_setting = functools.partial(setting, may_change_on_resume=True)
unset_setting = functools.partial(setting, unset=True, shown=False)


def inherited_setting(kind: type, name: str, **changes: typing.Any) -> typing.Any:
    """The field of a setting that another class declares, here with another default, help or heading."""
    return dataclasses.replace(declared_in(kind)[name], heading=changes.pop("heading", None), **changes).field()


@functools.cache
def declared_in(kind: type) -> dict[str, Declared]:
    """name -> declaration of the settings of a dataclass in their order, each with the heading that it belongs to."""
    settings, heading = {}, _FURTHER
    for field in dataclasses.fields(kind):
        if declared := field.metadata.get(_KEY):
            heading = declared.heading or heading
            settings[field.name] = dataclasses.replace(declared, heading=heading)
    return settings


def setting_group(kind: type, heading: str) -> tuple[str, ...]:
    return tuple(name for name, declared in declared_in(kind).items() if declared.heading == heading)


def value_of(settings, name: str):
    """The value of a setting, or its default where it is not given."""
    value = getattr(settings, name)
    return declared_in(type(settings))[name].default if value is None else value


def non_default_settings(settings, names: Collection[str]) -> list[str]:
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    return [name for name in names if getattr(settings, name) != defaults[name]]


def check_values(settings) -> None:
    """Raises if a declaration does not allow a value. None is a setting that is not given."""
    for name, declared in declared_in(type(settings)).items():
        if (value := getattr(settings, name)) is not None:
            declared.check_value(f"--{_flag_name(name)}", value)


# --- flags -----------------------------------------------------------------------------------------------------------


def define_flags(*kinds: type, without: Collection[str] = (), values: Flags = flags.FLAGS, **defaults) -> Flags:
    """Defines a flag for each setting of some classes, `without` some, with other defaults for some; returns all."""
    folder, program = os.path.split(getattr(sys.modules["__main__"], "__file__", None) or "")
    if folder.endswith(os.path.join("bert_tf", "cli")):
        name = program.removesuffix(".py")
        sys.exit(f"{program}: error: start it with `bert-tf {name}`, or in a checkout with `python {program}`.")
    for kind in kinds:
        types_of_values = {field.name: field.type for field in dataclasses.fields(kind)}
        for name, declared in declared_in(kind).items():
            if name not in without:
                usual = None if declared.default is REQUIRED or not declared.shown else declared.default
                _define_flag(_flag_name(name), types_of_values[name], declared, defaults.get(name, usual), values)
    return values


def parsed_flags(arguments: Sequence[str], *kinds: type) -> dict[str, object]:
    """Name -> value of the settings of some classes that arguments give, as a script's command line does."""
    values = flags.FlagValues()
    define_flags(*kinds, values=values)
    try:
        if loose := values(["", *arguments])[1:]:
            raise flags.Error(f"{loose[0]} is not a flag; write it with two dashes")
    except flags.Error as error:
        raise ValueError(str(error)) from None
    return {name: values[name].value for name in flags_given(values)}


def _flag_name(name: str) -> str:
    return name.rstrip("_")  # from_, as `from` is a word of Python


def _define_flag(name: str, kind, declared: Declared, default, values: Flags) -> None:
    """A flag of a type: lists are separated by commas, the flag of a tuple can be repeated."""
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    define = {
        bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string,
        list: flags.DEFINE_list, Sequence: flags.DEFINE_list, tuple: flags.DEFINE_multi_string,
    }[typing.get_origin(kind) or kind]  # fmt: skip
    default = list(default) if isinstance(default, tuple) else default
    if declared.choices:
        flags.DEFINE_enum(name, default, list(declared.choices), declared.help, flag_values=values)
    else:
        define(name, default, declared.help, flag_values=values)
    setattr(values[name], _KEY, declared)


def settings_of(kind: type[Settings], values: Flags, check: Callable[[Settings], object] = check_values) -> Settings:
    """Settings of a kind from a script's flags; see `with_models`."""
    chosen, set_flags = {}, flags_given(values)
    for name, declared in declared_in(kind).items():
        flag = _flag_name(name)
        if flag in set_flags or (flag in values and not declared.unset and values[flag].value is not None):
            chosen[name] = values[flag].value
    return with_models(kind(**chosen), check, values["output_dir"].value if "output_dir" in values else None)


def with_models(settings: Settings, check: Callable = check_values, begun: str | None = None) -> Settings:
    """Settings that were checked, with the local folders of models instead of their names on the hub.

    check: of the settings, before a model is downloaded, and with its folder.
    begun: the output_dir of a run that may go on.
    """
    check(settings)
    folders = {}
    for name, declared in declared_in(type(settings)).items():
        if declared.names_model(value := getattr(settings, name)):
            flag = f"--{_flag_name(name)}"
            folders[name] = hub.local(value, flag, begun, with_weights=not declared.model_file)
            if declared.model_file:
                with naming_flag(f"{flag}={value}"):
                    folders[name] = declared.model_file(folders[name])
    if folders:
        settings = dataclasses.replace(settings, **folders)
        check(settings)
    return settings


def flags_given(values: Flags) -> set[str]:
    """The names of the flags that are on the command line, or were set by a program, even to their defaults."""
    return {name for name in values if values[name].present or not values[name].using_default_value}


def required_flags(values: Flags) -> list[str]:
    return [name for name, declared in declared_flags(values).items() if declared.default is REQUIRED]


def declared_flags(values: Flags) -> dict[str, Declared]:
    return {name: declared for name in values if (declared := getattr(values[name], _KEY, None))}


def help_text(values: Flags) -> str:
    """The flags of a script in groups, the original's first; empty if none was made by `define_flags`."""
    groups: dict[str, list[str]] = {ORIGINAL: []}
    for name, declared in declared_flags(values).items():
        groups.setdefault(declared.heading or _FURTHER, []).append(_help_of_flag(values[name], declared))
    return "".join(f"\n{heading}:\n{''.join(texts)}" for heading, texts in groups.items() if texts)


def _help_of_flag(flag: flags.Flag, declared: Declared) -> str:
    default = flag.default
    notes = [declared.bounds] if declared.bounds else []
    if declared.default is REQUIRED:
        notes.insert(0, "required")
    elif not declared.unset and default not in (None, "", []):
        shown = str(default).lower() if flag.boolean else ",".join(default) if isinstance(default, list) else default
        notes.insert(0, f"default: {shown}")
    name = f"[no]{flag.name}" if flag.boolean else flag.name
    choices = f" <{'|'.join(filter(None, declared.choices))}>" if declared.choices else ""
    text = f"--{name}{choices}: {declared.help}" + (f" ({'; '.join(map(str, notes))})" if notes else "")
    return flags.text_wrap(text, indent="    ", firstline_indent="  ") + "\n"
