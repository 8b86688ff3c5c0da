"""The text of a setting and its typed value: one into the other."""

import re
from decimal import Decimal

from tidelog.model.setting_rows import INT32_MAX, INT64_MAX, Setting, SettingType, SettingValue

_INTEGER_LIMITS = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-INT32_MAX - 1, INT32_MAX),
    SettingType.LONG: (-INT64_MAX - 1, INT64_MAX),
}


def parse_value(setting: Setting, text: str) -> SettingValue:
    """Turn the text of a setting into its typed value, or raise ValueError with a sentence."""
    value = _parse_type(setting, text)
    _check_range(setting, value)
    if setting.refused and value != setting.default:
        raise ValueError(f"{setting.name} cannot be set to {text!r}: {setting.refused}")
    return value


def _parse_type(setting: Setting, text: str) -> SettingValue:
    text = text.strip()
    match setting.type:
        case SettingType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{setting.name} must be true or false, not {text!r}")
            return text.lower() == "true"
        case SettingType.SHORT | SettingType.INT | SettingType.LONG:
            if re.fullmatch(r"[+-]?[0-9]{1,20}", text) is None:
                raise ValueError(f"{setting.name} must be a whole number, not {text!r}")
            number = int(text)
            low, high = _INTEGER_LIMITS[setting.type]
            if not low <= number <= high:
                raise ValueError(f"{setting.name} must fit a {setting.type.name.lower()}, {text} does not")
            return number
        case SettingType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise ValueError(f"{setting.name} must be a number, not {text!r}") from None
        case SettingType.LIST:
            items = [item.strip() for item in text.split(",")] if text else []
            # a choice that is made twice is made once
            return tuple(dict.fromkeys(items) if setting.choices else items)
        case _:
            return text


def _check_range(setting: Setting, value: SettingValue) -> None:
    if isinstance(value, tuple):
        for item in value:
            if setting.choices and item not in setting.choices:
                choices = ", ".join(map(str, setting.choices))
                raise ValueError(f"{setting.name} may only have {choices}, not {item!r}")
        return
    if setting.choices and value not in setting.choices:
        choices = ", ".join(map(str, setting.choices))
        raise ValueError(f"{setting.name} must be one of {choices}, not {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if value != value:  # NaN compares with nothing, so the range below would let it through.
        raise ValueError(f"{setting.name} must be a number")
    if setting.minimum is not None and value < setting.minimum:
        raise ValueError(f"{setting.name} must be at least {setting.minimum}, not {value}")
    if setting.maximum is not None and value > setting.maximum:
        raise ValueError(f"{setting.name} must be at most {setting.maximum}, not {value}")


def format_value(value: SettingValue) -> str | None:
    """Write a typed value as Kafka would."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _format_double(value) if isinstance(value, float) else str(value)


def _format_double(value: float) -> str:
    """As Java does: plain from a thousandth to ten million, else with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value in (float("inf"), float("-inf")):
        return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value) or repr(value)
    digits, _, exponent = f"{Decimal(repr(value)):E}".partition("E")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}E{int(exponent)}"
