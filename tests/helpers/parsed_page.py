"""A page taken apart, to state what it shows and that it loads nothing."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags, attributes and text of a page, entities resolved."""

    def __init__(self, html):
        super().__init__()
        self.html, self.tags, self.text = html, [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def attribute(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]

    def having_class(self, name):
        return [a for _, a in self.tags if name in (a.get("class") or "").split()]

    @property
    def loads(self):
        """Everything a browser would fetch: all but links to the other sheets and data inside the page."""
        targets = self.attribute("src") + self.attribute("srcset") + self.attribute("href")
        targets += re.findall(r"url\(([^)]*)\)|@import", self.html)
        return [
            one for one in targets if not re.fullmatch(r"\d{4}\.html|data:image/jpeg;base64,[\w+/=]+", one)
        ]
