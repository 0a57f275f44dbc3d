"""What turns can say of themselves: profiles, and what the shadow does for each.

Law: what a profile asks for can be done: a question without classes, or of what is not read, stops
the start.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from shadow_reader.chat import CHAT

NARRATE: Final = (
    "Say in one or two short sentences what you were just thinking about, and what you will do "
    "next. Write plain text."
)
"""What the narrator asks for."""
ClassName: TypeAlias = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)
]


class ShadowProfile(BaseModel):
    """What the shadow does for the turns of a profile.

    Attributes:
        mode: off: their sessions are journaled and not read.
        narrator: on: when a thought of theirs ends, a summary of it is written and journaled;
            needs the mode on.
        narrator_prompt: what the model is asked to write.
        router: shadow: each of their turns is classified beside the server's own router; needs
            router_classes, and the mode on.
        router_min_tokens: of a prompt that is classified.
        router_classes: what is chosen from, name -> what it means (may be empty).
        router_question: what is asked.
        router_chat: the messages around the question, ``{question}`` among them.
        router_timeout_s: the question is given up after so long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["off", "on"] = "off"
    narrator: Literal["off", "on"] = "off"
    narrator_prompt: Annotated[str, Field(min_length=1, max_length=4000)] = NARRATE
    router: Literal["off", "shadow"] = "off"
    router_min_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = 8192
    router_classes: dict[ClassName, Annotated[str, Field(max_length=700)]] = Field(
        default_factory=dict, max_length=26
    )
    router_question: Annotated[str, Field(min_length=1, max_length=4000)] = (
        "What kind of work does the user's last request ask for?"
    )
    router_chat: Annotated[str, Field(max_length=4000)] = CHAT
    router_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 600.0

    @field_validator("router_chat")
    @classmethod
    def _one_question(cls, value: str) -> str:
        if value.count("{question}") != 1:
            raise ValueError("must hold {question}, once")
        return value

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.router == "shadow" and len(self.router_classes) < 2:
            raise ValueError("router = shadow needs two router_classes at least")
        if self.router == "shadow" and self.mode == "off":
            raise ValueError("router = shadow needs mode = on: what is not read cannot answer")
        if self.narrator == "on" and self.mode == "off":
            raise ValueError("narrator = on needs mode = on: what is not read cannot be told of")
        return self


class Profile(BaseModel):
    """A profile that a turn can name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shadow: ShadowProfile = ShadowProfile()
