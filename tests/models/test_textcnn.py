import pytest
import torch

from fedkeel.models import Inputs, build

IMDB = Inputs((256,), 2, vocabulary=20_000)
TINY = Inputs((9,), 2, vocabulary=30)


def tiny():
    """With strong biases, so that some filters respond to nothing at all."""
    torch.manual_seed(0)
    model = build("textcnn", TINY, embedding=6, filters=20).eval()
    for convolution in model.body[0].convolutions:
        torch.nn.init.normal_(convolution.bias)
    return model


@torch.no_grad()
def shy():
    """Every filter responds less to any word than to padding."""
    model = tiny()
    model.body[0].embedding.weight.abs_()
    for convolution in model.body[0].convolutions:
        convolution.weight.abs_().neg_()
    return model


def test_weights_kim_2014(count):
    convolutions = sum(100 * width * 100 + 100 for width in (3, 4, 5))
    assert count(build("textcnn", IMDB)) == 20_000 * 100 + convolutions + (300 * 2 + 2)


@torch.no_grad()
def test_features_are_the_strongest_response_of_each_filter():
    model, tokens = tiny(), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]])
    words = model.body[0]
    framed = [0] * 5 + tokens[0].tolist() + [0] * 5
    expected = []
    for convolution, width in zip(words.convolutions, (3, 4, 5), strict=True):
        for weight, bias in zip(convolution.weight, convolution.bias, strict=True):
            windows = (framed[start : start + width] for start in range(len(framed) - width + 1))
            responses = [(weight * words.embedding.weight[window].T).sum() + bias for window in windows]
            expected.append(max(0.0, max(float(response) for response in responses)))
    torch.testing.assert_close(model.body(tokens)[0], torch.tensor(expected))


@pytest.mark.parametrize("make", [tiny, shy])
def test_the_number_of_zeros_around_a_text_does_not_matter(make):
    model, text = make(), torch.tensor([[7, 8, 9]])
    for before, after in [(0, 1), (0, 20), (4, 0), (3, 9)]:
        padded = torch.nn.functional.pad(text, (before, after))
        torch.testing.assert_close(model(padded), model(text))


def test_a_text_shorter_than_the_widest_filter_counts():
    model = tiny()
    one, other = model(torch.tensor([[7]])), model(torch.tensor([[8]]))
    assert one.shape == (1, 2)
    assert not torch.equal(one, other)


def test_a_text_of_nothing_but_padding_is_finite():
    assert tiny()(torch.zeros(2, 9, dtype=torch.int64)).isfinite().all()


def test_padding_is_no_word_and_learns_nothing():
    model = tiny()
    model(torch.tensor([[7, 8, 0, 0]])).sum().backward()
    embedding = model.body[0].embedding.weight
    assert not embedding[0].any()
    assert not embedding.grad[0].any()
    assert embedding.grad[7].any()
