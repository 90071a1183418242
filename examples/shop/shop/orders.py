"""The orders, stored with SQLAlchemy."""

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shop.settings import DATABASE_URL

engine = create_engine(DATABASE_URL.replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    picture: Mapped[str]


def create_tables() -> None:
    Base.metadata.create_all(engine)


def new_session() -> Session:
    return Session(engine)
