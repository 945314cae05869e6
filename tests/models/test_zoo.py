import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from fedkeel.errors import InputError
from fedkeel.models import Classifier, Inputs, build, complete, describe, names, options

IMAGES = [Inputs((1, 28, 28), 10), Inputs((3, 32, 32), 10), Inputs((3, 64, 64), 200)]
TEXT = Inputs((40,), 2, vocabulary=50)
SMALLEST = {
    "mnist-cnn": 4,
    "lenet5": 12,
    "lenet5-wide": 12,
    "cifar10-cnn": 8,
    "cnn": 3,
    "vgg11": 17,
    "resnet18": 9,
    "resnet20": 5,
    "alexnet": 17,
    "googlenet": 5,
    "densenet121": 16,
}
NORMALISED = ["vgg11", "resnet18", "resnet20", "googlenet", "densenet121"]
DROPPING = ["mnist-cnn", "cifar10-cnn", "alexnet", "textcnn"]
FITTING = [(name, inputs) for name in names() if name != "textcnn" for inputs in IMAGES] + [("textcnn", TEXT)]


def usual(name):
    return TEXT if name == "textcnn" else IMAGES[1]


def batch(inputs, size=2):
    generator = torch.Generator().manual_seed(1)
    if inputs.vocabulary:
        x = torch.randint(1, inputs.vocabulary, (size, *inputs.shape), generator=generator)
    else:
        x = torch.randn(size, *inputs.shape, generator=generator)
    return x, torch.randint(inputs.classes, (size,), generator=generator)


def norms(model):
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
    return {type(module) for module in model.modules() if isinstance(module, kinds)}


def test_the_papers_models_are_all_here():
    small = ["linear", "mlp-400", "mnist-cnn", "lenet5", "lenet5-wide", "cifar10-cnn", "cnn"]
    deep = ["vgg11", "resnet18", "resnet20", "alexnet", "googlenet", "densenet121"]
    assert names() == [*small, *deep, "textcnn"]


@pytest.mark.parametrize("name", names())
def test_description_is_one_line_that_names_a_paper(name):
    line = describe(name)
    assert "\n" not in line
    assert any(paper in line for paper in ("FedAgg", "FedEnt", "FedLGA", "FedASMU"))


def test_options_come_with_their_defaults():
    every = {"projection": None}
    assert options("linear") == every
    assert options("mnist-cnn") == {"dropout": 0.0, **every}
    assert options("cifar10-cnn") == {"dropout": 0.25, **every}
    assert options("alexnet") == {"norm": "none", "dropout": 0.0, "hidden": None, **every}
    assert options("textcnn") == {"embedding": 100, "filters": 100, "dropout": 0.5, **every}
    assert [name for name in names() if options(name) == {"norm": "batch", **every}] == NORMALISED


def test_a_projection_stands_between_body_and_head():
    model = build("lenet5", Inputs((1, 28, 28), 10), projection=7)
    assert model.head.in_features == 7
    assert [type(layer) for layer in model.body[-1]] == [nn.Linear, nn.ReLU, nn.Linear]
    assert model.body(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_options_that_are_not_chosen_are_completed():
    expected = {"norm": "none", "dropout": 0.5, "hidden": None, "projection": None}
    assert complete("alexnet", {"dropout": 0.5}) == expected
    assert complete("linear", {}) == {"projection": None}
    with pytest.raises(InputError, match=r"model.norm must be one of batch, group, none; got 'layer'"):
        complete("alexnet", {"norm": "layer"})
    with pytest.raises(InputError, match=r"model.projection must be a whole number .*; got 0$"):
        complete("lenet5", {"projection": 0})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "inputs"), FITTING, ids=str)
def test_body_gives_features_and_a_linear_head_gives_logits(name, inputs):
    model = build(name, inputs).eval()
    x, _ = batch(inputs)
    with torch.no_grad():
        features = model.body(x)
        logits = model(x)
    assert isinstance(model, Classifier)
    assert type(model.head) is nn.Linear
    assert features.shape == (2, model.head.in_features)
    assert logits.shape == (2, model.head.out_features) == (2, inputs.classes)
    torch.testing.assert_close(logits, features @ model.head.weight.T + model.head.bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"),
    [(name, {}) for name in names()]
    + [(name, {"norm": norm}) for name in [*NORMALISED, "alexnet"] for norm in ("group", "none")],
    ids=str,
)
def test_one_step_on_images_that_are_not_square_moves_every_parameter(name, chosen):
    torch.manual_seed(0)
    inputs = TEXT if name == "textcnn" else Inputs((2, 18, 25), 4)
    model = build(name, inputs, **chosen)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    x, y = batch(inputs)
    cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [key for key, value in model.named_parameters() if torch.equal(value, before[key])] == []
    assert all(value.isfinite().all() for value in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALISED)
def test_norm_selects_the_normalisation_and_only_batch_norm_has_buffers(name):
    inputs = usual(name)
    batch_norm, group_norm, none = (build(name, inputs, norm=norm) for norm in ("batch", "group", "none"))
    assert norms(batch_norm) == {nn.BatchNorm2d}
    assert norms(group_norm) == {nn.GroupNorm}
    assert norms(none) == set()
    assert len(list(batch_norm.buffers())) > 0
    assert list(group_norm.buffers()) == list(none.buffers()) == []


@pytest.mark.parametrize("name", sorted(set(names()) - set(NORMALISED)))
def test_other_models_have_no_norm_and_no_buffers(name):
    model = build(name, usual(name))
    assert norms(model) == set()
    assert list(model.buffers()) == []


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_acts_in_training_only(name):
    inputs = usual(name)
    model = build(name, inputs, dropout=0.5)
    x, _ = batch(inputs)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("name", DROPPING)
def test_without_dropout_nothing_is_random(name):
    inputs = usual(name)
    model = build(name, inputs, dropout=0)
    state = torch.get_rng_state()
    model(batch(inputs)[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_only_models_with_dropout_offer_it():
    assert [name for name in names() if "dropout" in options(name)] == DROPPING


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "textcnn"])
def test_weights_follow_the_global_generator(name):
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([value.flatten() for value in build(name, usual(name)).parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_image_trains_even_alone_and_a_smaller_one_is_refused(name):
    side = SMALLEST[name]
    inputs = Inputs((3, side, side), 10)
    x, _ = batch(inputs, size=1)
    assert build(name, inputs).train()(x).shape == (1, 10)
    told = rf"{name} needs images .* {side} x {side} pixels; got shape \(3, {side}, {side - 1}\)$"
    with pytest.raises(InputError, match=told):
        build(name, Inputs((3, side, side - 1), 10))


@pytest.mark.parametrize("name", sorted(set(names()) - {"textcnn"}))
def test_models_of_numbers_refuse_text(name):
    with pytest.raises(InputError, match=rf"model.name: {name} needs .*; got shape \(40,\) of 50 token ids$"):
        build(name, TEXT)


@pytest.mark.parametrize("inputs", [IMAGES[0], Inputs((40,), 2), Inputs((1, 4, 4), 2, vocabulary=50)], ids=str)
def test_textcnn_takes_only_token_sequences_with_a_vocabulary(inputs):
    with pytest.raises(InputError, match=r"model.name: textcnn needs token sequences .*; got "):
        build("textcnn", inputs)


def test_image_models_refuse_flat_vectors():
    with pytest.raises(InputError, match=r"lenet5 needs images .*; got shape \(784,\)$"):
        build("lenet5", Inputs((784,), 10))


@pytest.mark.parametrize("look", [describe, options, lambda name: build(name, IMAGES[0])])
def test_an_unknown_name_is_answered_with_the_nearest(look):
    with pytest.raises(InputError, match=r"model\.name: 'lenet' is not known; did you mean lenet5"):
        look("lenet")


def test_an_unknown_option_is_answered_with_those_of_the_model():
    with pytest.raises(InputError, match=r"model\.drop is not a setting of alexnet; did you mean model\.dropout\?"):
        build("alexnet", IMAGES[1], drop=0.5)
    with pytest.raises(InputError, match=r"model\.norm is not a setting of lenet5; lenet5 has only the setting"):
        build("lenet5", IMAGES[1], norm="batch")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("mnist-cnn", "dropout", value) for value in (1, 1.0, -0.1, float("nan"), "0.5", True, None)]
    + [("vgg11", "norm", value) for value in ("layer", "Batch", None, ["batch"])]
    + [("textcnn", option, value) for option in ("embedding", "filters") for value in (0, 2.5, True)],
    ids=str,
)
def test_a_bad_value_names_the_field_the_value_and_what_it_must_be(name, option, value):
    with pytest.raises(InputError) as refused:
        build(name, usual(name), **{option: value})
    assert str(refused.value).startswith(f"model.{option} must be ")
    assert str(refused.value).endswith(f"; got {value!r}")


@pytest.mark.parametrize("bad", [{"shape": ()}, {"shape": (1, 0, 28)}, {"classes": 0}, {"vocabulary": 1}], ids=str)
def test_inputs_without_substance_are_refused(bad):
    with pytest.raises(InputError, match=rf"^inputs.{next(iter(bad))} must .* at least \d.*; got "):
        Inputs(**{"shape": (1, 28, 28), "classes": 10, **bad})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("linear", {}),
        ("mlp-400", {}),
        ("lenet5", {}),
        ("resnet20", {"norm": "group"}),
        ("textcnn", {"dropout": 0}),
    ],
    ids=str,
)
def test_gradients_of_stacked_clients_are_those_of_each_alone(name, chosen):
    torch.manual_seed(0)
    inputs = usual(name)
    clients = [build(name, inputs, **chosen).double() for _ in range(2)]
    x, y = batch(inputs, size=4)
    x, y = (x if inputs.vocabulary else x.double()).unflatten(0, (2, 2)), y.unflatten(0, (2, 2))
    weights, buffers = stack_module_state(clients)

    def loss(weights, x, y):
        return cross_entropy(functional_call(clients[0], weights, (x,)), y)

    stacked = vmap(grad(loss))(weights, x, y)
    assert buffers == {}
    for client, model in enumerate(clients):
        cross_entropy(model(x[client]), y[client]).backward()
        for key, value in model.named_parameters():
            torch.testing.assert_close(stacked[key][client], value.grad)
