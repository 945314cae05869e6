"""Five shops learn to sort the messages of their customers, without showing them to each other.

The messages are synthetic: made of phrases, and one in twenty is filed under a wrong topic. Every shop has few of them,
and most are about one topic. This script writes messages.npz into the current folder. On the command line:

    fedkeel run --set dataset=messages.npz dataset.vocabulary=2000 dataset.test=0.4 metrics=f1,accuracy \
        model=textcnn model.filters=32 model.embedding=32 rounds=40 local.lr=0.2 local.batch_size=16
"""

import random

import numpy as np

from fedkeel import Experiment, FederatedData, run
from fedkeel.data.text import HashingTokenizer

PHRASES = {
    "delivery": "has not arrived;came to the wrong door;is two weeks late;where is my parcel;the courier never rang;"
    "tracking shows nothing;when will you send it",
    "refund": "I want my money back;please cancel my order;was charged twice;no credit on my card;how do I return it;"
    "the invoice is wrong;send me a label for the return",
    "defect": "broke after a day;does not work;came with a crack;one part is missing;smells of smoke;"
    "makes a strange noise;fell apart",
    "praise": "works like a charm;thank you so much;will buy again;better than I hoped;great service as always;"
    "my daughter loves it;five stars from me",
}
SHOPS = {"books": "novel atlas", "toys": "puzzle kite", "tools": "drill saw", "phones": "phone cable", "shoes": "boot"}
TOPICS = list(PHRASES)

random.seed(1)
texts, topics, shops = [], [], []
for place, (shop, products) in enumerate(SHOPS.items()):
    mix = [6 if topic == place % 4 else 1 for topic in range(4)]
    for topic in random.choices(TOPICS, mix, k=120):
        words = random.choice(["Hello,", "Dear team,"]), "the", random.choice(products.split())
        texts.append(" ".join([*words, random.choice(PHRASES[topic].split(";"))]))
        topics.append(TOPICS.index(topic if random.random() < 0.95 else random.choice(TOPICS)))
        shops.append(shop)

x, y, client = HashingTokenizer(vocabulary=2000, length=24).encode(texts), np.array(topics), np.array(shops)
np.savez("messages.npz", x=x, y=y, client=client)  # for the command line
own = [(x[client == shop], y[client == shop]) for shop in SHOPS]
data = FederatedData.from_clients(own, test=0.4, vocabulary=2000, client_names=list(SHOPS))  # x holds token ids
textcnn = {"name": "textcnn", "filters": 32, "embedding": 32}
experiment = Experiment(model=textcnn, metrics=["f1", "accuracy"], rounds=40, local={"lr": 0.2, "batch_size": 16})
result = run(experiment, data=data)
together = result.evaluate_clients(metric="f1")

print("F1, mean over the topics, on each shop's own test messages")
print("shop    alone  together")
for name, f1 in zip(data.client_names, together, strict=True):
    alone = run(experiment, data=data.only(name)).metrics["f1"]
    print(f"{name:6}  {alone:5.3f}  {f1:8.3f}")
by_topic = zip(TOPICS, result.summary["by_class"]["f1"], strict=True)
print("each topic, all shops:", ", ".join(f"{topic} {f1:.2f}" for topic, f1 in by_topic))
