"""Damage to any file."""

from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The file with a few bytes flipped, cut out, put in, or its end cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["flip", "cut off", "cut out", "put in"])):
            case "flip" if at < len(content):
                content[at] ^= draw(st.integers(1, 255))
            case "cut off":
                del content[at:]
            case "cut out":
                del content[at : at + draw(st.integers(1, 20))]
            case _:
                content[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(content)
