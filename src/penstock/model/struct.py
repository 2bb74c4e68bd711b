"""Values: structs that nobody changes, made by naming their fields."""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


class _FrozenMeta(msgspec.StructMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, metaclass=_FrozenMeta, frozen=True, kw_only=True):
    """A struct whose subclasses are frozen and keyword-only without saying so: a required field may come last."""
