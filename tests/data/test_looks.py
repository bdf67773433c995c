import torch

from insclr.data.views import looks, plain_view


def test_without_zoom_the_whole_picture_is_seen_once_a_size() -> None:
    pixels = torch.randint(256, (3, 40, 60), dtype=torch.uint8)
    seen = looks(pixels, [20, 30], "square")
    assert [tuple(view.shape) for view in seen] == [(3, 20, 20), (3, 30, 30)]
    assert torch.equal(seen[0], plain_view(pixels, 20, "square"))


def test_zoom_adds_a_mirrored_look_at_the_middle() -> None:
    # Columns 0 to 9 hold their own number: of the middle half, 2 to 7 by rounding, the last comes first.
    pixels = torch.arange(10, dtype=torch.uint8).expand(3, 10, 10)
    whole, closer = looks(pixels, [6], "square", zoom=0.6)
    assert closer.shape == whole.shape
    assert closer[0, 0].tolist() == [7, 6, 5, 4, 3, 2]
